// evergrad-worker: runs closures of training jobs, pulls values from the servers and pushes
// gradients to them.
#include "worker/sdk/sdk.h"

int main(int argc, char** argv) {
  return evergrad::sdk::WorkerMain(argc, argv, evergrad::sdk::Registry());
}
