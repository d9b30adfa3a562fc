// Runs the cases of worker/graph's gradients_test.cc on a GPU: whole models, with their steps and
// copies.
#define EG_CONTRACT_ON_GPU
#include "tests/unit/worker/graph/gradients_test.cc"
