// Runs the cases of contract_losses_test.cc on a GPU.
#define EG_CONTRACT_ON_GPU
#include "tests/unit/worker/backend/contract_losses_test.cc"
