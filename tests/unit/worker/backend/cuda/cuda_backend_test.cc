// Tests the worker's part of the GPU backend on the emulated device (emulated_library.cc): steps
// that are captured and replayed, memory, copies through the ring, and errors. The results of
// primitives are tested by the contract (../contract_test.cc, "emulated GPU").
#include "worker/backend/cuda/cuda_backend.h"

#include <dlfcn.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "common/tensor/convert.h"
#include "tests/support/paths.h"
#include "tests/unit/worker/backend/cuda/emulated_library.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/library.h"
#include "worker/backend/self_check.h"

namespace evergrad::worker {
namespace {

std::string Library() { return absl::StrCat(test::BinDir(), "/libworker_cuda_emulated.so"); }

EmulatedControl& Control() {
  static EmulatedControl* const control = [] {
    void* const handle = ::dlopen(Library().c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(handle != nullptr);
    return reinterpret_cast<EmulatedControlEntry>(::dlsym(handle, "emulated_control"))();
  }();
  return *control;
}

struct Stage {
  EmulatedControl& control = Control();
  std::unique_ptr<CudaBackend> backend;
  explicit Stage(CudaOptions options = {}) {
    control = EmulatedControl{};
    backend = MakeCudaBackend(ChooseDevice("gpu", Library()).value(), options).value();
  }
  // When the backend has been destroyed, no object of the device may remain.
  ~Stage() {
    backend.reset();
    CHECK(control.events == 0);
    CHECK(control.graphs == 0);
    CHECK(control.plans == 0);
    CHECK(control.ranges == 0);
    CHECK(control.orphans == 0);
    CHECK(control.leaked == 0);
    CHECK(control.illegal == 0);
  }
  Memory Floats(std::size_t n) { return backend->Allocate(n * sizeof(float), "floats").value(); }
  void Put(const std::vector<float>& values, Memory& to,
           DeviceQueue queue = DeviceQueue::kCompute) {
    backend->Upload(queue, std::as_bytes(std::span(values)), to.as<std::byte>());
  }
  std::vector<float> Get(const Memory& from) {
    std::vector<float> values(from.as<float>().size(), -1.0f);
    backend->Download(DeviceQueue::kCompute, from.as<std::byte>(),
                      std::as_writable_bytes(std::span(values)));
    return values;
  }
};

// A dense layer with relu, and its gradients. It uses plans, a bias gradient and kernels.
struct DenseStep {
  static constexpr std::int64_t kIn = 5, kOut = 3;
  Stage& stage;
  std::int64_t batch;
  Memory x, w, b, y, dy, dx, dw, db, result;
  DenseStep(Stage& s, std::int64_t examples)
      : stage(s),
        batch(examples),
        x(s.Floats(static_cast<std::size_t>(examples * kIn))),
        w(s.Floats(kIn * kOut)),
        b(s.Floats(kOut)),
        y(s.Floats(static_cast<std::size_t>(examples * kOut))),
        dy(s.Floats(static_cast<std::size_t>(examples * kOut))),
        dx(s.Floats(static_cast<std::size_t>(examples * kIn))),
        dw(s.Floats(kIn * kOut)),
        db(s.Floats(kOut)),
        result(s.backend->Allocate(sizeof(double), "result").value()) {
    s.Put(std::vector<float>(kIn * kOut, 0.5f), w);
    s.Put(std::vector<float>(kOut, 1.0f), b);
  }
  // Computes y = relu(x w + b) with dy = y, and returns the sum of squares of db.
  absl::StatusOr<double> Run(float value) {
    CudaBackend& backend = *stage.backend;
    stage.Put(std::vector<float>(static_cast<std::size_t>(batch * kIn), value), x);
    const std::uint64_t signature[] = {1, static_cast<std::uint64_t>(batch)};
    if (!backend.BeginStep(signature)) {
      backend.Enter("dense", Phase::kForward);
      backend.DenseForward(batch, kIn, kOut, x.as<float>(), w.as<float>(), b.as<float>(),
                           Activation::kRelu, y.as<float>());
      backend.Copy(y.as<float>(), dy.as<float>());
      backend.Enter("dense", Phase::kBackward);
      backend.DenseBackward(batch, kIn, kOut, x.as<float>(), w.as<float>(), Activation::kRelu,
                            y.as<float>(), dy.as<float>(), dx.as<float>(), dw.as<float>(),
                            db.as<float>());
      backend.SumOfSquares(db.as<float>(), result.as<double>().data());
    }
    backend.EndStep();
    double sum = 0;
    const absl::Status status =
        backend.Finish(result.as<std::byte>(), std::as_writable_bytes(std::span(&sum, 1)));
    if (!status.ok()) return status;
    return sum;
  }
  double Want(float value) const {
    return kOut * std::pow(static_cast<double>(batch) * std::max(0.0, 2.5 * value + 1.0), 2);
  }
};

TEST_CASE("a step is run, captured once and replayed, with the same result each time") {
  Stage stage;
  DenseStep step(stage, 4);
  for (int i = 0; i < 20; ++i)
    CHECK(*step.Run(static_cast<float>(i)) == Approx(step.Want(static_cast<float>(i))));
  const GraphCapture::Stats stats = stage.backend->stats().capture;
  CHECK(stats.captures == 1);
  CHECK(stats.eager == 2);
  CHECK(stats.replays == 17);
  CHECK(stats.recaptures_total() == 0);
  CHECK(stage.control.launches == 18);
}

TEST_CASE("a captured step whose memory grows is captured again with the reason") {
  Stage stage;
  DenseStep step(stage, 4);
  for (int i = 0; i < 5; ++i) REQUIRE(step.Run(1).ok());
  // This call is made outside the step, and needs more scratch memory than the step does.
  const std::int64_t n = 1 << 20;
  Memory large = stage.Floats(n), sum = stage.backend->Allocate(sizeof(double), "sum").value();
  stage.backend->Zero(large.as<std::byte>());
  stage.backend->SumOfSquares(large.as<float>(), sum.as<double>().data());
  for (int i = 0; i < 5; ++i) CHECK(*step.Run(2) == Approx(step.Want(2)));
  const GraphCapture::Stats stats = stage.backend->stats().capture;
  CHECK(stats.captures == 2);
  CHECK(stats.recaptures == std::map<std::string, std::uint64_t>{{"addresses changed", 1}});
}

TEST_CASE(
    "a captured convolution is captured again after a larger one needed new memory for filters") {
  Stage stage;
  const auto shape = [](std::int64_t filters) {
    return Conv2dShape{1, 3, 3, 2, 2, 2, filters, 2, 2, 1, 1, 0, 0, 0, 0};
  };
  Memory x = stage.Floats(18), w = stage.Floats(8 * 3), y = stage.Floats(4 * 3),
         wide = stage.Floats(8 * 500), out = stage.Floats(4 * 500);
  stage.Put(std::vector<float>(18, 1.0f), x);
  stage.Put(std::vector<float>(8 * 500, 1.0f), wide);
  const auto run = [&](float value) {
    stage.Put(std::vector<float>(8 * 3, value), w);
    const std::uint64_t signature[] = {1};
    if (!stage.backend->BeginStep(signature)) {
      stage.backend->Enter("conv", Phase::kForward);
      stage.backend->Conv2dForward(shape(3), x.as<float>(), w.as<float>(), {}, Activation::kLinear,
                                   y.as<float>());
    }
    stage.backend->EndStep();
    REQUIRE(stage.backend->Finish({}, {}).ok());
    return stage.Get(y);
  };
  for (int i = 1; i < 6; ++i)
    CHECK(run(static_cast<float>(i)) == std::vector<float>(4 * 3, 8.0f * static_cast<float>(i)));
  stage.backend->Conv2dForward(shape(500), x.as<float>(), wide.as<float>(), {}, Activation::kLinear,
                               out.as<float>());
  for (int i = 1; i < 6; ++i)
    CHECK(run(static_cast<float>(i)) == std::vector<float>(4 * 3, 8.0f * static_cast<float>(i)));
  CHECK(stage.backend->stats().capture.captures == 2);
  CHECK(stage.backend->stats().capture.recaptures ==
        std::map<std::string, std::uint64_t>{{"addresses changed", 1}});
}

TEST_CASE(
    "a convolution with uneven padding uses a padded copy if the library refuses it, and is "
    "replayed") {
  for (const bool choosy : {true, false}) {
    Stage stage;
    stage.control.choosy = choosy;
    // With 14 rows, a window of 3 and a stride of 2, only one of two padding rows is read. If there
    // is one row in front, a row behind changes nothing.
    for (const auto& [s, uneven] :
         {std::pair(Conv2dShape{1, 14, 14, 1, 7, 7, 2, 3, 3, 2, 2, 1, 1, 1, 1}, false),
          {Conv2dShape{1, 14, 14, 1, 7, 7, 2, 3, 3, 2, 2, 0, 0, 1, 1}, true}}) {
      Memory x = stage.Floats(14 * 14), w = stage.Floats(9 * 2), y = stage.Floats(49 * 2),
             dy = stage.Floats(49 * 2), dx = stage.Floats(14 * 14), dw = stage.Floats(9 * 2);
      const std::uint64_t signature[] = {static_cast<std::uint64_t>(uneven)};
      std::vector<float> first;
      for (int step = 0; step < 5; ++step) {
        stage.Put(std::vector<float>(14 * 14, 1.0f), x);
        stage.Put(std::vector<float>(9 * 2, 0.5f), w);
        stage.Put(std::vector<float>(49 * 2, 1.0f), dy);
        const std::uint64_t before = stage.control.ops;
        if (!stage.backend->BeginStep(signature)) {
          stage.backend->Enter("conv", Phase::kForward);
          stage.backend->Conv2dForward(s, x.as<float>(), w.as<float>(), {}, Activation::kLinear,
                                       y.as<float>());
          stage.backend->Conv2dBackward(s, x.as<float>(), w.as<float>(), Activation::kLinear, {},
                                        dy.as<float>(), dx.as<float>(), dw.as<float>(), {});
          // The filters are transposed in three operations. With uneven padding, three more
          // operations pad or crop images.
          CHECK(stage.control.ops - before == (choosy && uneven ? 6 : 3));
        }
        stage.backend->EndStep();
        REQUIRE(stage.backend->Finish({}, {}).ok());
        std::vector<float> all = stage.Get(y);
        for (const Memory* const more : {&dx, &dw})
          for (const float v : stage.Get(*more)) all.push_back(v);
        CHECK(all[0] == (uneven ? 4.5f : 2.0f));  // the result of the first window
        if (step == 0) first = all;
        CHECK(all == first);
      }
    }
    CHECK(stage.backend->stats().capture.replays == 4);
  }
}

TEST_CASE(
    "the emulated device refuses forbidden calls of a capturing thread and ends the capture, and "
    "allows those of other threads") {
  Stage stage;
  const EgCudaApi* const api = LoadCudaLibrary(Library()).value();
  EgCudaError error{};
  EgContext* context = nullptr;
  const EgOpenOptions open{};
  REQUIRE(api->open(&open, &context, &error) == EG_CUDA_OK);
  EgEvent *event = nullptr, *other = nullptr;
  REQUIRE(api->make_event(context, 0, &event, &error) == EG_CUDA_OK);
  REQUIRE(api->make_event(context, 0, &other, &error) == EG_CUDA_OK);
  std::int32_t passed = 0;
  std::uint64_t number = 0, total = 0;
  void* pinned = nullptr;
  float from = 0;
  const std::function<std::int32_t()> calls[] = {
      [&] { return api->passed(event, &passed, &error); },
      [&] { return api->wait(event, &error); },
      [&] { return api->allocate(context, 512, &number, &error); },
      [&] { return api->memory(context, &number, &total, &error); },
      [&] { return api->allocate_host(512, &pinned, &error); },
      [&] { return api->await(context, EG_LANE_OUT, event, &error); },
      [&] { return api->copy(context, EG_LANE_OUT, EG_COPY_OUT, &from, &from, 4, &error); }};
  for (const auto& call : calls) {
    EgGraph* graph = nullptr;
    REQUIRE(api->begin_capture(context, &error) == EG_CUDA_OK);
    CHECK(call() == EG_CUDA_FAILED);
    CHECK(api->end_capture(context, &graph, &error) == EG_CUDA_FAILED);
    CHECK(graph == nullptr);
  }
  CHECK(stage.control.illegal == std::size(calls));
  EgGraph* graph = nullptr;
  REQUIRE(api->begin_capture(context, &error) == EG_CUDA_OK);
  std::int32_t elsewhere = EG_CUDA_FAILED;
  std::thread([&] {
    EgCudaError own{};
    elsewhere = api->allocate_host(512, &pinned, &own);
    if (elsewhere == EG_CUDA_OK) api->release_host(pinned);
  }).join();
  CHECK(elsewhere == EG_CUDA_OK);
  REQUIRE(api->record(context, EG_LANE_COMPUTE, event, &error) == EG_CUDA_OK);
  REQUIRE(api->end_capture(context, &graph, &error) == EG_CUDA_OK);
  CHECK(api->launch(context, graph, &error) == EG_CUDA_OK);
  api->drop_event(event);
  CHECK(api->launch(context, graph, &error) == EG_CUDA_FAILED);
  CHECK(std::string(error.text) == "a graph was launched whose events are gone");
  CHECK(stage.control.orphans == 1);
  api->drop_graph(graph);
  api->drop_event(other);
  api->close(context);
  stage.control.illegal = 0;
  stage.control.orphans = 0;
}

TEST_CASE(
    "with more shapes than cached plans, plans are made again and steps that use them are captured "
    "again") {
  Stage stage;
  DenseStep step(stage, 4);
  for (int i = 0; i < 5; ++i) REQUIRE(step.Run(1).ok());
  constexpr std::int64_t kShapes = 4200;
  Memory x = stage.Floats(kShapes), w = stage.Floats(1), y = stage.Floats(kShapes);
  stage.Put(std::vector<float>(kShapes, 1.0f), x);
  stage.Put({3.0f}, w);
  for (std::int64_t n = 1; n <= kShapes; ++n)
    stage.backend->DenseForward(n, 1, 1, x.as<float>().first(static_cast<std::size_t>(n)),
                                w.as<float>(), {}, Activation::kLinear,
                                y.as<float>().first(static_cast<std::size_t>(n)));
  REQUIRE(stage.backend->TakeError().ok());
  CHECK(stage.control.plans <= 4096);
  CHECK(stage.Get(y) == std::vector<float>(kShapes, 3.0f));
  for (int i = 0; i < 5; ++i) CHECK(*step.Run(2) == Approx(step.Want(2)));
  CHECK(stage.backend->stats().capture.recaptures_total() >= 1);
}

TEST_CASE("a sum of more arrays than one launch takes adds all of them in order") {
  Stage stage;
  constexpr std::size_t kArrays = 2 * EG_LIST_MAX + 5;
  std::vector<Memory> arrays;
  std::vector<AnyIn> inputs;
  float want = 0;
  for (std::size_t i = 0; i < kArrays; ++i) {
    const float value = 1.0f + 0.001f * static_cast<float>(i * i);
    arrays.push_back(stage.Floats(3));
    stage.Put({value, value, value}, arrays.back());
    want = i == 0 ? value : want + value;
  }
  for (const Memory& array : arrays) inputs.push_back(array.as<float>());
  Memory y = stage.Floats(3);
  stage.backend->Sum(inputs, y.as<float>());
  CHECK(stage.Get(y) == std::vector<float>{want, want, want});
}

TEST_CASE("a sum of more 16-bit arrays than one launch takes is rounded once") {
  for (const Element type : {Element::kBFloat16, Element::kFloat16}) {
    Stage stage;
    constexpr std::size_t kArrays = 2 * EG_LIST_MAX + 5;
    const float large = type == Element::kBFloat16 ? 2048 : 2050;
    Memory one = stage.Floats(3), first = stage.Floats(3), ones = stage.Floats(2),
           firsts = stage.Floats(2), y = stage.Floats(2), back = stage.Floats(3);
    stage.Put({1.25f, 1.25f, 1.25f}, one);
    stage.Put({large, large, large}, first);
    const auto narrow = [type](Memory& memory) {
      return AnyOut(memory.as<std::byte>().data(), 3, type);
    };
    stage.backend->Copy(one.as<float>(), narrow(ones));
    stage.backend->Copy(first.as<float>(), narrow(firsts));
    std::vector<AnyIn> inputs(kArrays, narrow(ones));
    inputs[0] = narrow(firsts);
    stage.backend->Sum(inputs, narrow(y));
    stage.backend->Copy(narrow(y), back.as<float>());
    // The sums are 2293 and 2295. If they were rounded after each launch, the results would be 2272
    // and 2294.
    const float want = type == Element::kBFloat16 ? 2288 : 2296;
    CHECK(stage.Get(back) == std::vector<float>{want, want, want});
  }
}

TEST_CASE(
    "an algorithm that was out of memory is requested again after memory was freed or after a "
    "while") {
  Stage stage;
  Memory x = stage.Floats(4), w = stage.Floats(4), y = stage.Floats(4), other = stage.Floats(1000);
  stage.Put({1, 2, 3, 4}, x);
  stage.Put({1, 0, 0, 1}, w);
  const auto run = [&] {
    stage.backend->Enter("dense", Phase::kForward);
    stage.backend->DenseForward(2, 2, 2, x.as<float>(), w.as<float>(), {}, Activation::kLinear,
                                y.as<float>());
    return stage.backend->TakeError();
  };
  stage.control.no_plan_memory = true;
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = run();
    CHECK(refused.code() == absl::StatusCode::kResourceExhausted);
    CHECK(refused.message() ==
          "backend could not compute: layer=dense phase=forward primitive=dense forward cause=out "
          "of memory for an algorithm: out of memory");
  }
  stage.control.no_plan_memory = false;
  // The backend does not know yet that memory is available again.
  CHECK(run().code() == absl::StatusCode::kResourceExhausted);
  other = {};
  REQUIRE(run().ok());
  CHECK(stage.Get(y) == std::vector<float>{1, 2, 3, 4});
  // The backend does not learn when another process frees memory.
  Memory z = stage.Floats(6);
  const auto other_shape = [&] {
    stage.backend->DenseForward(2, 2, 2, x.as<float>(), w.as<float>(), {}, Activation::kTanh,
                                z.as<float>().subspan(1, 4));  // with another alignment
    return stage.backend->TakeError();
  };
  stage.control.no_plan_memory = true;
  REQUIRE_FALSE(other_shape().ok());
  stage.control.no_plan_memory = false;
  int refused = 0;
  while (!other_shape().ok() && refused < 5000) ++refused;
  CHECK(refused > 100);
  CHECK(refused < 2000);
}

TEST_CASE("a span that only begins in page-locked memory is not page-locked") {
  const auto pinned = std::make_shared<PinnedMemory>(LoadCudaLibrary(Library()).value());
  const tensor::AlignedBuffer buffer = pinned->Allocate(4096).value();
  CHECK(pinned->Holds(buffer.data(), 4096));
  CHECK(pinned->Holds(buffer.data() + 96, 4000));
  CHECK_FALSE(pinned->Holds(buffer.data() + 96, 4001));
  CHECK_FALSE(pinned->Holds(buffer.data() - 1, 2));
  CHECK_FALSE(pinned->Holds(buffer.data() + 4096, 1));
}

// The case runs on the emulated device only, because the bits of a NaN may be different on a real
// device.
TEST_CASE(
    "a device narrows and widens with the bits of the host's conversion, for all 16-bit patterns "
    "and all kinds of float32") {
  for (const Element type : {Element::kBFloat16, Element::kFloat16}) {
    const auto wire = static_cast<tensor::WireType>(type);
    Stage stage;
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    Memory narrow = stage.backend->Allocate(all.size() * 2, "narrow").value(),
           wide = stage.Floats(all.size());
    stage.backend->Upload(DeviceQueue::kCompute, std::as_bytes(std::span(all)),
                          narrow.as<std::byte>());
    stage.backend->Copy(AnyIn(narrow.as<std::byte>().data(), all.size(), type), wide.as<float>());
    const std::vector<float> widened = stage.Get(wide);
    std::vector<float> want(all.size());
    tensor::Widen(wire, reinterpret_cast<const std::byte*>(all.data()), all.size(), want.data());
    CHECK(std::memcmp(widened.data(), want.data(), want.size() * sizeof(float)) == 0);

    // For each pattern of the upper half, there are lower halves that round down, tie, and round
    // up. Denormals, infinities and NaN are among these values.
    std::vector<float> values;
    for (std::uint32_t upper = 0; upper < (1u << 16); ++upper)
      for (const std::uint32_t lower :
           {0x0000u, 0x0001u, 0x1000u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u})
        values.push_back(std::bit_cast<float>(upper << 16 | lower));
    Memory from = stage.Floats(values.size()),
           to = stage.backend->Allocate(values.size() * 2, "narrow").value();
    stage.Put(values, from);
    stage.backend->Copy(from.as<float>(), AnyOut(to.as<std::byte>().data(), values.size(), type));
    std::vector<std::uint16_t> got(values.size()), narrowed(values.size());
    stage.backend->Download(DeviceQueue::kCompute, to.as<std::byte>(),
                            std::as_writable_bytes(std::span(got)));
    tensor::Narrow(wire, values.data(), values.size(),
                   reinterpret_cast<std::byte*>(narrowed.data()));
    CHECK(got == narrowed);

    // Non-finite values must be found at every position.
    Memory found = stage.backend->Allocate(sizeof(std::uint64_t), "found").value();
    for (const bool fits : {true, false}) {
      std::vector<float> few(100, 65504.0f);
      if (!fits) few[97] = type == Element::kFloat16 ? 65520.0f : 3.4e38f;
      stage.Put(few, from);
      stage.backend->Zero(found.as<std::byte>());
      const AnyOut hundred(to.as<std::byte>().data(), 100, type);
      stage.backend->Copy(from.as<float>().first(100), hundred);
      stage.backend->FindNotFinite(hundred, found.as<std::uint64_t>().data());
      std::uint64_t said = 7;
      stage.backend->Download(DeviceQueue::kCompute, found.as<std::byte>(),
                              std::as_writable_bytes(std::span(&said, 1)));
      CHECK(said == (fits ? 0 : 1));
    }
  }
}

TEST_CASE(
    "a graph is dropped with an event that it contains, and a step with a new event is another "
    "step") {
  Stage stage;
  CudaBackend& backend = *stage.backend;
  Memory x = stage.Floats(1000), y = stage.Floats(1000);
  std::optional<std::unique_ptr<QueueMark>> there;
  const auto run = [&](float value) {
    stage.Put(std::vector<float>(1000, value), x, DeviceQueue::kIn);
    backend.Record(DeviceQueue::kIn, **there);
    const std::uint64_t signature[] = {7};  // as if each event had the same address
    if (!backend.BeginStep(signature)) {
      backend.Await(DeviceQueue::kCompute, **there);
      backend.Scale(2, x.as<float>(), y.as<float>());
    }
    backend.EndStep();
    CHECK(stage.Get(y) == std::vector<float>(1000, 2 * value));
  };
  DenseStep other(stage, 4);
  for (int i = 0; i < 3; ++i) CHECK(*other.Run(1) == Approx(other.Want(1)));
  for (int round = 0; round < 3; ++round) {
    there = backend.MakeQueueMark().value();
    for (int i = 0; i < 5; ++i) run(static_cast<float>(10 * round + i));
    CHECK(stage.control.graphs == 2);
    there.reset();
    CHECK(stage.control.graphs == 1);
    CHECK(backend.stats().capture.graphs == 1);
  }
  CHECK(backend.stats().capture.captures == 4);
  CHECK(backend.stats().capture.recaptures_total() == 0);
  const std::uint64_t replays = backend.stats().capture.replays;
  CHECK(*other.Run(2) == Approx(other.Want(2)));
  CHECK(backend.stats().capture.replays == replays + 1);
}

TEST_CASE(
    "a step that cannot be captured runs eagerly, and its capture is abandoned after three "
    "failures") {
  Stage stage;
  DenseStep step(stage, 4);
  stage.control.fail_captures = true;
  for (int i = 0; i < 10; ++i)
    CHECK(*step.Run(static_cast<float>(i)) == Approx(step.Want(static_cast<float>(i))));
  const GraphCapture::Stats stats = stage.backend->stats().capture;
  CHECK(stats.captures == 0);
  CHECK(stats.failures == 3);
  CHECK(stage.control.launches == 0);
}

TEST_CASE("first allocations of scratch or plans end a capture, and the step still runs whole") {
  CudaOptions options;
  options.capture.warm_up = 0;  // so that the first step is captured
  Stage stage(options);
  DenseStep step(stage, 4);
  for (int i = 0; i < 6; ++i)
    CHECK(*step.Run(static_cast<float>(i)) == Approx(step.Want(static_cast<float>(i))));
  const GraphCapture::Stats stats = stage.backend->stats().capture;
  CHECK(stats.failures >= 1);
  CHECK(stats.captures == 1);
  CHECK(stats.replays >= 3);
}

TEST_CASE(
    "a failed operation during a capture is a named error of the step, and the next step "
    "succeeds") {
  CudaOptions options;
  options.capture.warm_up = 1;
  Stage stage(options);
  DenseStep step(stage, 4);
  REQUIRE(step.Run(1).ok());
  stage.control.fail_after_ops = 2;
  stage.control.fail_kind = EG_CUDA_NO_MEMORY;
  const auto captured = step.Run(2);  // the first capture had failed; the second must not
  CHECK(*captured == Approx(step.Want(2)));
  CHECK(stage.backend->stats().capture.failures == 1);
  DenseStep eager(stage, 5);
  stage.control.fail_after_ops = 2;
  const auto failed = eager.Run(1);
  CHECK(failed.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(failed.status().message() ==
        "backend could not compute: layer=dense phase=forward primitive=EG_OP_CAST cause=made to "
        "fail");
  CHECK(*eager.Run(3) == Approx(eager.Want(3)));
}

TEST_CASE("a step whose capture ended with an error is never replayed") {
  Stage stage;
  DenseStep step(stage, 4);
  stage.control.no_plans = true;
  // The step fails twice when it is run directly, once when it is captured, and in every later run.
  // The calls before the error must not become a graph.
  for (int i = 0; i < 6; ++i)
    CHECK(step.Run(static_cast<float>(i)).status().code() == absl::StatusCode::kInternal);
  CHECK(stage.control.launches == 0);
  CHECK(stage.control.graphs == 0);
}

TEST_CASE("a failed upload is an error, and its part of the ring is reused") {
  CudaOptions options;
  options.staging_bytes = 1 << 14;
  Stage stage(options);
  Memory memory = stage.Floats(1000);
  const std::vector<float> values(1000, 2.0f);
  for (int round = 0; round < 10; ++round) {
    stage.control.fail_after_copies = 1;
    stage.control.fail_kind = EG_CUDA_NO_MEMORY;
    stage.Put(values, memory);
    CHECK(stage.backend->TakeError().code() == absl::StatusCode::kResourceExhausted);
    stage.Put(values, memory);
    CHECK(stage.Get(memory) == values);
  }
  CHECK(stage.backend->TakeError().ok());
}

TEST_CASE("ten thousand steps need no more memory, events, plans or graphs than ten steps") {
  Stage stage;
  DenseStep step(stage, 4);
  std::uint64_t reserved = 0, used = 0;
  std::int64_t events = 0, plans = 0, graphs = 0;
  for (int i = 0; i < 10000; ++i) {
    const auto result = step.Run(static_cast<float>(i % 7));
    if (!result.ok() || *result != Approx(step.Want(static_cast<float>(i % 7)))) FAIL("step " << i);
    if (i == 10) {
      reserved = stage.backend->memory().reserved, used = stage.backend->memory().used;
      plans = stage.control.plans, graphs = stage.control.graphs, events = stage.control.events;
    }
  }
  CHECK(stage.backend->memory().reserved == reserved);
  CHECK(stage.backend->memory().used == used);
  CHECK(stage.control.plans == plans);
  CHECK(stage.control.graphs == graphs);
  CHECK(stage.control.events <= events + 16);  // the ring may still hold the events of uploads
}

TEST_CASE(
    "steps of more shapes than cached graphs give correct results, and those that run eagerly are "
    "counted") {
  CudaOptions options;
  options.capture.graphs_max = 2;
  Stage stage(options);
  std::vector<std::unique_ptr<DenseStep>> steps;
  for (std::int64_t batch = 1; batch <= 4; ++batch)
    steps.push_back(std::make_unique<DenseStep>(stage, batch));
  for (int round = 0; round < 10; ++round)
    for (const auto& step : steps)
      CHECK(*step->Run(static_cast<float>(round)) == Approx(step->Want(static_cast<float>(round))));
  const DeviceUse use = *stage.backend->device_use(false);
  CHECK(use.graphs == 2);
  CHECK(stage.control.graphs == 2);
  CHECK(use.captures == 2);
  CHECK(use.crowded == 2 * 8);
  CHECK(use.replays == 2 * 7);
  for (int i = 0; i < 20; ++i) CHECK(*steps[3]->Run(2) == Approx(steps[3]->Want(2)));
  CHECK(stage.control.graphs == 2);
  CHECK(stage.backend->device_use(false)->replays > 2 * 7);
}

TEST_CASE(
    "uploads from any memory use the ring, even if they are larger, and the host's copy may change "
    "at once") {
  CudaOptions options;
  options.staging_bytes = 10000;
  Stage stage(options);
  std::vector<float> values(50000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<float> want = values;
  Memory memory = stage.Floats(values.size());
  auto there = stage.backend->MakeQueueMark().value();
  stage.Put(values, memory, DeviceQueue::kIn);
  stage.backend->Record(DeviceQueue::kIn, *there);
  std::fill(values.begin(), values.end(), -5.0f);
  stage.backend->Await(DeviceQueue::kCompute, *there);
  CHECK(stage.Get(memory) == want);
  CHECK(stage.control.pageable_copies == 1);  // only the download of this test
  CHECK(stage.backend->stats().staging.refused > 0);
  CHECK(stage.backend->stats().staging.in_use_peak <= 10000);
  REQUIRE(stage.backend->Wait(*there).ok());
}

TEST_CASE(
    "page-locked memory is transferred without a wait, and is kept for the next buffer of its "
    "size") {
  Stage stage;
  const std::byte* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    tensor::AlignedBuffer host = stage.backend->AllocateHost(4000).value();
    if (i == 0) first = host.data();
    CHECK(host.data() == first);
    Memory memory = stage.backend->Allocate(4000, "x").value();
    stage.backend->Upload(DeviceQueue::kIn, {host.data(), host.size()}, memory.as<std::byte>());
    stage.backend->Download(DeviceQueue::kIn, memory.as<std::byte>(), {host.data(), host.size()});
    auto done = stage.backend->MakeQueueMark().value();
    stage.backend->Record(DeviceQueue::kIn, *done);
    REQUIRE(stage.backend->Wait(*done).ok());
  }
  CHECK(stage.control.pageable_copies == 0);
  CHECK(stage.backend->stats().staging.blocks == 0);
}

TEST_CASE(
    "returned page-locked memory is kept up to the most in use at once, so steps of large models "
    "allocate none") {
  const auto pinned = std::make_shared<PinnedMemory>(LoadCudaLibrary(Library()).value());
  EmulatedControl& control = Control();
  control = EmulatedControl{};
  const std::size_t part = 40 << 20;
  const auto step = [&](std::size_t bytes, int parts) {
    std::vector<tensor::AlignedBuffer> out;
    for (int i = 0; i < parts; ++i)
      out.push_back(pinned->Allocate(bytes + static_cast<std::size_t>(i)).value());
    CHECK(control.pinned_bytes <=
          std::max<std::uint64_t>(PinnedMemory::kKeptMax, 10 * PinnedMemory::Rounded(part + 1)));
  };
  step(part, 10);  // more than kKeptMax
  const std::uint64_t asked = control.pinned_asked;
  CHECK(asked == 10);
  for (int i = 0; i < 5; ++i) step(part, 10);
  CHECK(control.pinned_asked == asked);
  // Buffers of other sizes replace these buffers, the oldest ones first.
  step(3 * part, 3);
  CHECK(control.pinned_asked == asked + 3);
  step(3 * part, 3);
  CHECK(control.pinned_asked == asked + 3);
  step(100, 50);
  CHECK(control.pinned_asked == asked + 53);
  for (const std::size_t bytes : {1u, 4096u, 4097u, 65537u, 1000003u}) {
    const std::size_t rounded = PinnedMemory::Rounded(bytes);
    CHECK((rounded >= bytes && rounded % 4096 == 0 &&
           rounded < bytes + std::max<std::size_t>(4096, bytes / 8 + 1)));
    CHECK(PinnedMemory::Rounded(rounded) == rounded);
  }
}

TEST_CASE("page-locked memory that the driver refused does not count as memory in use at once") {
  const auto pinned = std::make_shared<PinnedMemory>(LoadCudaLibrary(Library()).value());
  EmulatedControl& control = Control();
  control = EmulatedControl{};
  control.no_pinned = true;
  CHECK_FALSE(pinned->Allocate(std::size_t{1} << 40).ok());
  control.no_pinned = false;
  // Only one buffer exists at a time, because each is freed before the next is requested.
  for (std::size_t i = 0; i < 20; ++i) CHECK(pinned->Allocate((40 + i) << 20).ok());
  CHECK(control.pinned_bytes <= PinnedMemory::kKeptMax);
}

TEST_CASE("a refused size of page-locked memory is not requested again for each buffer") {
  const auto pinned = std::make_shared<PinnedMemory>(LoadCudaLibrary(Library()).value());
  EmulatedControl& control = Control();
  control = EmulatedControl{};
  control.pinned_bytes_max = 1 << 20;
  auto asked = [&, before = std::uint64_t{0}]() mutable {
    return control.pinned_asked - std::exchange(before, control.pinned_asked);
  };
  CHECK_FALSE(pinned->Allocate(2 << 20).ok());
  CHECK(asked() == 1);
  for (int i = 0; i < 500; ++i) {
    const absl::Status refused = pinned->Allocate((2 << 20) + i).status();
    CHECK(refused.code() == absl::StatusCode::kResourceExhausted);
    CHECK(refused.message().find(absl::StrCat("bytes=", (2 << 20) + i, ": out of memory")) !=
          absl::string_view::npos);
  }
  CHECK(asked() == 0);
  // The test lowers the limit of the driver. Freed memory is kept. It is given back when another
  // size is needed and the driver has no more memory.
  std::vector<tensor::AlignedBuffer> out;
  for (int i = 0; i < 16; ++i) out.push_back(pinned->Allocate(64 << 10).value());
  CHECK(asked() == 16);
  CHECK_FALSE(pinned->Allocate(4096).ok());
  CHECK(asked() == 1);
  out.clear();
  CHECK(control.pinned_bytes == 1 << 20);
  CHECK_FALSE(pinned->Allocate(8192).ok());
  CHECK(asked() == 0);
  out.push_back(pinned->Allocate(64 << 10).value());  // from the kept memory
  CHECK(asked() == 0);
  for (std::uint32_t i = 1; i < PinnedMemory::kRefusedMax; ++i)
    CHECK_FALSE(pinned->Allocate(8192).ok());
  CHECK(asked() == 0);
  out.push_back(pinned->Allocate(8192).value());
  CHECK(asked() == 2);
  CHECK(control.pinned_bytes == (64 << 10) + 8192);
  // For this allocation, a part of the kept memory was given back to the driver.
  out.push_back(pinned->Allocate(512 << 10).value());
  CHECK(asked() == 1);
  out.clear();
}

TEST_CASE("without page-locked memory the driver's own copies are used and are correct") {
  Stage stage;
  stage.control.no_pinned = true;
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Memory memory = stage.Floats(values.size());
  stage.Put(values, memory, DeviceQueue::kIn);
  auto there = stage.backend->MakeQueueMark().value();
  stage.backend->Record(DeviceQueue::kIn, *there);
  stage.backend->Await(DeviceQueue::kCompute, *there);
  CHECK(stage.Get(memory) == values);
  CHECK(stage.control.pageable_copies == 2);
  CHECK(stage.backend->device_use(false)->in_bytes == 20000);
  CHECK(stage.backend->device_use(false)->staged_bytes == 0);
  stage.control.no_pinned = false;
  // After some refusals, memory of this size is requested again.
  for (std::uint32_t i = 0; i <= PinnedMemory::kRefusedMax; ++i) stage.Put(values, memory);
  CHECK(stage.backend->device_use(false)->staged_bytes > 0);
  CHECK(stage.Get(memory) == values);
  CHECK(stage.backend->TakeError().ok());
}

TEST_CASE("a buffer is not reused while a copy reads it") {
  Stage stage;
  tensor::AlignedBuffer host = stage.backend->AllocateHost(4096).value();
  for (int round = 0; round < 50; ++round) {
    std::uint64_t address = 0;
    {
      Memory memory = stage.Floats(1024);
      address = reinterpret_cast<std::uint64_t>(memory.as<float>().data());
      stage.Put(std::vector<float>(1024, static_cast<float>(round)), memory);
      auto made = stage.backend->MakeQueueMark().value();
      stage.backend->Record(DeviceQueue::kCompute, *made);
      stage.backend->Await(DeviceQueue::kOut, *made);
      stage.backend->Download(DeviceQueue::kOut, memory.as<std::byte>(),
                              {host.data(), host.size()});
      REQUIRE(stage.backend->Wait(*made).ok());
    }
    Memory next = stage.Floats(1024);  // kCompute may overwrite it long before kOut has read it
    stage.Put(std::vector<float>(1024, -9.0f), next);
    static_cast<void>(address);
    auto done = stage.backend->MakeQueueMark().value(),
         out = stage.backend->MakeQueueMark().value();
    stage.backend->Record(DeviceQueue::kCompute, *done);
    REQUIRE(stage.backend->Wait(*done).ok());
    stage.backend->Record(DeviceQueue::kOut, *out);
    REQUIRE(stage.backend->Wait(*out).ok());
    if (host.floats()[1023] != static_cast<float>(round))
      FAIL("round " << round << ": " << host.floats()[1023]);
  }
}

TEST_CASE("a copy into a new buffer waits for kernels that use the former buffer at that address") {
  Stage stage;
  tensor::AlignedBuffer host = stage.backend->AllocateHost(4096).value();
  std::fill(host.floats().begin(), host.floats().end(), -9.0f);
  Memory ones = stage.Floats(1024), sum = stage.Floats(1024);
  stage.Put(std::vector<float>(1024, 1.0f), ones);
  stage.backend->Zero(sum.as<std::byte>());
  int reused = 0;
  for (int round = 0; round < 50; ++round) {
    const float* address = nullptr;
    {
      Memory part = stage.Floats(1024);
      address = part.as<float>().data();
      stage.backend->Scale(2, ones.as<float>(), part.as<float>());
      stage.backend->AddScaled(1, part.as<float>(), sum.as<float>());
    }
    Memory next = stage.Floats(1024);
    reused += next.as<float>().data() == address ? 1 : 0;
    stage.backend->Upload(DeviceQueue::kIn, {host.data(), host.size()}, next.as<std::byte>());
    auto there = stage.backend->MakeQueueMark().value();
    stage.backend->Record(DeviceQueue::kIn, *there);
    REQUIRE(stage.backend->Wait(*there).ok());
  }
  CHECK(reused > 40);  // otherwise the test would prove nothing
  CHECK(stage.Get(sum) == std::vector<float>(1024, 100.0f));
}

TEST_CASE("a full device reports the requested, the free and the used bytes") {
  Stage stage;
  stage.control.memory_bytes = 64 << 20;
  Memory most = stage.backend->Allocate(40 << 20, "most").value();
  const auto refused = stage.backend->Allocate(30 << 20, "conv1/kernel");
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(refused.status().message() ==
        absl::StrCat("out of memory: what=conv1/kernel bytes=31457280 free=", 24 << 20,
                     " in_use=", 40 << 20, " cached=0 largest_cached=0"));
  CHECK(stage.backend->stats().memory.in_use_peak == 40 << 20);
  stage.control.no_pinned = true;
  CHECK(stage.backend->AllocateHost(100).status().code() == absl::StatusCode::kResourceExhausted);
  stage.control.no_pinned = false;
}

TEST_CASE("a failed device is Unavailable, and the error names the place") {
  Stage stage;
  DenseStep step(stage, 4);
  REQUIRE(step.Run(1).ok());
  stage.control.fail_waits = true;
  const auto failed = step.Run(1);
  stage.control.fail_waits = false;
  CHECK(failed.status().code() == absl::StatusCode::kUnavailable);
  CHECK(failed.status().message().find("the device has failed: an illegal memory access") !=
        absl::string_view::npos);
}

// Returns y, dw and dx of a dense layer on `type`. The numbers are small integers, and the sizes
// are odd. The step is run so often that it is replayed in the end.
std::vector<float> Products(Stage& stage, Element type, std::int64_t batch, std::int64_t in,
                            std::int64_t out, bool to_float32) {
  CudaBackend& backend = *stage.backend;
  const auto array = [&](std::int64_t n, Element e) {
    return backend.Allocate(static_cast<std::size_t>(n) * BytesOf(e), "operand").value();
  };
  const auto any = [](Memory& m, std::int64_t n, Element e) {
    return AnyOut(m.as<std::byte>().data(), static_cast<std::size_t>(n), e);
  };
  const auto fill = [&](Memory& to, std::int64_t n, int seed) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 5 - 2);
    Memory wide = stage.Floats(values.size());
    stage.Put(values, wide);
    backend.Copy(wide.as<float>(), any(to, n, type));
  };
  const Element y_type = to_float32 ? Element::kFloat32 : type;
  Memory x = array(batch * in, type), w = array(in * out, type), b = array(out, Element::kFloat32),
         y = array(batch * out, y_type);
  Memory dy = array(batch * out, type), dx = array(batch * in, type),
         dw = array(in * out, Element::kFloat32), db = array(out, Element::kFloat32);
  Memory result = backend.Allocate(sizeof(double), "result").value();
  fill(x, batch * in, 1), fill(w, in * out, 2), fill(dy, batch * out, 3);
  stage.Put(std::vector<float>(static_cast<std::size_t>(out), 3.0f), b);
  for (int run = 0; run < 5; ++run) {
    const std::uint64_t signature[] = {
        99, static_cast<std::uint64_t>(batch), static_cast<std::uint64_t>(in),
        static_cast<std::uint64_t>(out), static_cast<std::uint64_t>(type)};
    if (!backend.BeginStep(signature)) {
      backend.Enter("dense", Phase::kForward);
      backend.DenseForward(batch, in, out, any(x, batch * in, type), any(w, in * out, type),
                           b.as<float>(), Activation::kLinear, any(y, batch * out, y_type));
      backend.DenseBackward(batch, in, out, any(x, batch * in, type), any(w, in * out, type),
                            Activation::kLinear, any(y, batch * out, y_type),
                            any(dy, batch * out, type), any(dx, batch * in, type), dw.as<float>(),
                            db.as<float>());
      backend.SumOfSquares(db.as<float>(), result.as<double>().data());
    }
    backend.EndStep();
    double sum = 0;
    const absl::Status status =
        backend.Finish(result.as<std::byte>(), std::as_writable_bytes(std::span(&sum, 1)));
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  std::vector<float> all;
  for (const auto& [memory, n, e] :
       {std::tuple{&y, batch * out, y_type}, std::tuple{&dw, in * out, Element::kFloat32},
        std::tuple{&dx, batch * in, type}, std::tuple{&db, out, Element::kFloat32}}) {
    Memory wide = stage.Floats(static_cast<std::size_t>(n));
    backend.Copy(any(*memory, n, e), wide.as<float>());
    const std::vector<float> values = stage.Get(wide);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_CASE(
    "a 16-bit product without an algorithm is computed in float32, with TF32 if allowed, and "
    "replayed") {
  const Element type = GENERATE(Element::kBFloat16, Element::kFloat16);
  const bool to_float32 = GENERATE(false, true);
  for (const auto& [batch, in, out] :
       {std::tuple{7, 5, 11}, std::tuple{4, 9, 3}, std::tuple{1, 1, 1}, std::tuple{65, 33, 129}}) {
    INFO(NameOf(type) << " " << batch << "x" << in << "x" << out);
    std::vector<float> results[2];
    std::uint64_t widened[2], tf32[2], replays[2];
    for (const bool offered : {false, true}) {
      Stage stage;
      stage.control.choosy = !offered;
      results[offered] = Products(stage, type, batch, in, out, to_float32);
      widened[offered] = stage.backend->stats().products_widened;
      tf32[offered] = stage.control.tf32_runs;
      replays[offered] = stage.backend->stats().capture.replays;
    }
    CHECK(results[0] == results[1]);  // float32 sums of small integers are exact
    CHECK(widened[0] > 0);
    CHECK((tf32[0] > 0) == (out % 3 != 0 || in % 3 != 0));
    CHECK((widened[1] == 0 && tf32[1] == 0));
    CHECK((replays[0] == replays[1] && replays[0] > 0));
  }
}

TEST_CASE("a shape that the library refuses is one error that names the layer") {
  Stage stage;
  DenseStep step(stage, 4);
  stage.control.no_plans = true;
  const auto failed = step.Run(1);
  CHECK(failed.status().message() ==
        "backend could not compute: layer=dense phase=forward primitive=dense forward cause=the "
        "library has no algorithm for this shape: not such a "
        "one");
  stage.control.no_plans = false;
  CHECK(stage.backend->TakeError().ok());
}

TEST_CASE(
    "the device's events give the times of copies, kernels and waits for copies, captured or not") {
  Stage stage;
  CudaBackend& backend = *stage.backend;
  tensor::AlignedBuffer host = backend.AllocateHost(4096).value();
  Memory a = stage.Floats(1024), b = stage.Floats(1024);
  const auto there = backend.MakeQueueMark().value(), made = backend.MakeQueueMark().value(),
             out = backend.MakeQueueMark().value();
  const auto run = [&](bool before) {
    backend.Upload(DeviceQueue::kIn, {host.data(), host.size()}, a.as<std::byte>());
    backend.Upload(DeviceQueue::kIn, {host.data(), host.size()}, b.as<std::byte>());
    backend.Record(DeviceQueue::kIn, *there);
    if (before) backend.Await(DeviceQueue::kCompute, *there);
    const std::uint64_t signature[] = {7, before ? 1u : 0u};
    if (!backend.BeginStep(signature)) {
      backend.Enter("layer", Phase::kForward);
      if (!before) backend.Await(DeviceQueue::kCompute, *there);
      for (int i = 0; i < 3; ++i) backend.Scale(2, a.as<float>(), b.as<float>());
      backend.Record(DeviceQueue::kCompute, *made);
    }
    backend.EndStep();
    backend.Await(DeviceQueue::kOut, *made);
    backend.Download(DeviceQueue::kOut, b.as<std::byte>(), {host.data(), host.size()});
    backend.Record(DeviceQueue::kOut, *out);
    REQUIRE(backend.Finish({}, {}).ok());
    REQUIRE(backend.Wait(*out).ok());
  };
  // These are times in milliseconds of the emulated device. A step has two copies to the device,
  // which take 2 each and for which the kernels wait, three kernels of 1, and a copy to the host of
  // 2. The times of the copies are read one step later.
  for (int i = 0; i < 10; ++i) run(i % 2 == 0);
  const DeviceUse use = *backend.device_use(false);
  CHECK(use.measured == 10);
  CHECK(use.replays == 4);
  CHECK(use.captures == 2);
  CHECK(use.eager == 4);
  CHECK(use.in == Approx(9 * 0.004));
  CHECK(use.kernels == Approx(10 * 0.003));
  CHECK(use.stalled == Approx(10 * 0.004));
  CHECK(use.out == Approx(9 * 0.002));
  CHECK(use.memory.used == 8192);
  CHECK(use.memory.peak >= use.memory.used);
  CHECK(use.memory.reserved >= use.memory.used);
  CHECK_FALSE(use.utilization.has_value());
  // The driver's numbers are reported only if there is a driver and the caller asks for them.
  CHECK_FALSE(backend.device_use(true)->utilization.has_value());
  stage.control.utilization = 0.75f;
  CHECK_FALSE(backend.device_use(false)->utilization.has_value());
  CHECK(*backend.device_use(true)->utilization == 0.75);
  CHECK(backend.device_use(true)->memory.free > 0);
  // A failed step must not be counted, and the step after it must be counted.
  stage.control.fail_after_ops = 1;
  const std::uint64_t signature[] = {8};
  CHECK_FALSE(backend.BeginStep(signature));
  backend.Scale(2, a.as<float>(), b.as<float>());
  backend.EndStep();
  CHECK_FALSE(backend.Finish({}, {}).ok());
  run(true);
  CHECK(backend.device_use(false)->measured == 11);
}

TEST_CASE(
    "a GPU whose results differ from the CPU's is skipped by auto and refused by gpu, which name "
    "the primitive") {
  EmulatedControl& control = Control();
  control = EmulatedControl{};
  CHECK(ChooseCheckedDevice("auto", Library(), 7)->name == "gpu:0");
  const std::uint64_t work = control.ops + control.plan_runs;
  REQUIRE(work > 10);
  std::set<std::string> named;
  for (std::uint64_t n = 1; n <= work;
       n += n < 40 ? 1 : 13) {  // the larger numbers are all in one step
    control = EmulatedControl{};
    control.wrong_ops = static_cast<std::int64_t>(n);  // every operation from the n-th on is wrong
    const auto choice = ChooseCheckedDevice("auto", Library(), n);
    REQUIRE(choice.ok());
    INFO(n << ": " << choice->text);
    CHECK(choice->name == "cpu");
    CHECK_THAT(
        choice->text,
        Catch::StartsWith("cpu: gpu:0 does not compute the same values as the CPU: primitive="));
    named.insert(choice->text.substr(0, choice->text.find(" want=")));
    CHECK(control.events == 0);
    CHECK(control.leaked == 0);
  }
  CHECK(named.size() >= 6);
  const auto refused = ChooseCheckedDevice("gpu", Library(), 3);
  CHECK(BlameOf(refused.status()) == Blame::kUser);
  CHECK_THAT(std::string(refused.status().message()),
             Catch::StartsWith("device gpu is not usable: gpu:0 does not compute the same values "
                               "as the CPU: primitive=dense want=") &&
                 Catch::EndsWith(" seed=3"));
  // The error must say whether a library failed or computed wrong values. Here it fails.
  control = EmulatedControl{};
  control.memory_bytes = 1000;
  CHECK_THAT(ChooseCheckedDevice("auto", Library(), 1)->text,
             Catch::StartsWith("cpu: out of memory: what=self-check"));
  control = EmulatedControl{};
  CHECK(ChooseCheckedDevice("gpu:0", Library(), 1)->name == "gpu:0");
  CHECK(ChooseCheckedDevice("cpu", Library(), 1)->name == "cpu");
}

TEST_CASE("a GPU whose copies do not wait for events of a recorded step is refused") {
  EmulatedControl& control = Control();
  control = EmulatedControl{};
  control.late_graph_events = true;
  const auto choice = ChooseCheckedDevice("auto", Library(), 7);
  control.late_graph_events = false;
  CHECK(choice->name == "cpu");
  CHECK_THAT(choice->text, Catch::StartsWith("cpu: gpu:0 does not compute the same values as the "
                                             "CPU: primitive=step with copies want="));
}

TEST_CASE(
    "ranges are named for layers and phases if a profiler listens, and otherwise queried once") {
  {
    Stage stage;
    DenseStep step(stage, 4);
    for (int i = 0; i < 10; ++i) REQUIRE(step.Run(1).ok());
    CHECK(stage.control.ranges_asked == 1);
  }
  Stage stage;
  stage.control.profiled = true;
  DenseStep step(stage, 4);
  for (int i = 0; i < 3; ++i) REQUIRE(step.Run(1).ok());
  // A step that runs directly or is captured asks for two ranges, one for the forward pass and one
  // for the backward pass. Two steps ran directly, and one was captured.
  CHECK(stage.control.ranges_asked == 6);
  for (int i = 0; i < 5; ++i) REQUIRE(step.Run(1).ok());
  CHECK(stage.control.ranges_asked == 11);  // a replayed step asks for one range
  CHECK(stage.control.ranges == 0);
}

TEST_CASE(
    "the first deterministic algorithm is used, or the fastest measured one on request, once for "
    "each shape") {
  Stage stage;
  DenseStep step(stage, 4);
  for (int i = 0; i < 8; ++i) REQUIRE(step.Run(1).ok());
  CHECK(stage.backend->stats().plans == 3);  // forward, weight gradient, input gradient
  CHECK(stage.backend->stats().plans_measured == 0);
  stage.backend->SetReproducible(false);
  for (int i = 0; i < 8; ++i) CHECK(*step.Run(1) == Approx(step.Want(1)));
  CHECK(stage.backend->stats().plans == 6);
  CHECK(stage.backend->stats().plans_measured == 9);
  CHECK(stage.control.plans == 6);  // plans that were not chosen are destroyed
  CHECK(stage.backend->stats().capture.captures == 2);
  // The earlier choices must still exist when the mode is switched back. The workspace has grown
  // meanwhile, so the step is captured once more.
  stage.backend->SetReproducible(true);
  for (int i = 0; i < 3; ++i) CHECK(*step.Run(2) == Approx(step.Want(2)));
  CHECK(stage.backend->stats().plans == 6);
  CHECK(stage.backend->stats().capture.captures == 3);
  CHECK(stage.backend->stats().capture.recaptures ==
        std::map<std::string, std::uint64_t>{{"addresses changed", 1}});
}

TEST_CASE("a GPU below compute capability 8.0 computes only in float32, and reports the reason") {
  for (const int major : {7, 8}) {
    Control() = EmulatedControl{};
    Control().major = major;
    const auto backend = MakeCudaBackend(ChooseDevice("gpu", Library()).value(), {}).value();
    CHECK(backend->CheckPrecision(Precision::kFloat32).ok());
    for (const Precision precision :
         {Precision::kTf32, Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
      const absl::Status can = backend->CheckPrecision(precision);
      CHECK(can.ok() == (major == 8));
      if (major == 7)
        CHECK(can.message() == "this precision needs a GPU of compute capability 8.0 or higher");
    }
  }
  Control() = EmulatedControl{};
}

TEST_CASE(
    "products use TF32 exactly where a job wants it, and a step recorded with another setting is "
    "not replayed") {
  Stage stage;
  stage.control.choosy = false;  // otherwise TF32 would have no plan for its three columns
  DenseStep step(stage, 4);
  for (const bool tf32 : {false, true, false, true}) {
    stage.backend->SetTf32(tf32);
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t tf32_runs = stage.control.tf32_runs, runs = stage.control.plan_runs,
                          launches = stage.control.launches;
      CHECK(*step.Run(1) == Approx(step.Want(1)));
      if (stage.control.launches == launches)
        CHECK(stage.control.tf32_runs - tf32_runs == (tf32 ? stage.control.plan_runs - runs : 0));
    }
  }
  CHECK(stage.control.tf32_runs > 0);
  CHECK(stage.control.graphs == 2);  // one for each of the two modes
}

}  // namespace
}  // namespace evergrad::worker
