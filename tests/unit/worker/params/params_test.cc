// Tests how variables are divided into partitions, assembled, and divided again. The subjects are
// the checks of the layout, the cache of pulls, weights and gradients.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>

#include "common/tensor/convert.h"
#include "common/wire/data_frame.h"
#include "evergrad/v1/session.pb.h"
#include "worker/params/layout.h"
#include "worker/params/weights.h"

namespace evergrad::worker {
namespace {

struct Cut {
  std::uint32_t shard;
  std::uint32_t index;
  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin, end;
};

v1::Plan PlanOf(const std::vector<Cut>& cuts) {
  v1::Plan plan;
  for (const Cut& cut : cuts) {
    v1::ShardSpec& spec = *plan.add_shards();
    spec.set_shard(cut.shard);
    spec.set_row_begin(cut.begin);
    spec.set_row_end(cut.end);
    spec.mutable_variable()->set_index(cut.index);
    spec.mutable_variable()->set_name(cut.name);
    spec.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    for (const std::uint64_t d : cut.shape) spec.mutable_variable()->add_shape(d);
  }
  return plan;
}
// The plan has a/kernel (5,2), whose shards have the rows 3 to 5 and 0 to 3 in this order, a/bias
// (2), and a scalar.
v1::Plan Small() {
  return PlanOf({{2, 0, "a/kernel", {5, 2}, 3, 5},
                 {0, 0, "a/kernel", {5, 2}, 0, 3},
                 {1, 1, "a/bias", {2}, 0, 2},
                 {3, 2, "scale", {}, 0, 1}});
}

// Returns an answer for one shard with the values first, first + 1, … The values are in a frame, at
// the offset of a section, which is aligned to 64 bytes.
PulledShard Pulled(std::uint32_t shard, std::uint64_t elements, float first, std::uint64_t vlsn,
                   std::uint64_t frame_extra = 0, std::size_t misalign = 0) {
  auto frame = std::make_shared<tensor::AlignedBuffer>(64 + misalign + elements * 4 + frame_extra);
  float* values = reinterpret_cast<float*>(frame->data() + misalign);
  for (std::uint64_t i = 0; i < elements; ++i) values[i] = first + static_cast<float>(i);
  return {ShardId(shard),
          {1, 1},
          vlsn,
          {frame, {frame->data() + misalign, elements * 4}},
          frame->size()};
}

TEST_CASE("the shards of a plan become rows of variables in row order") {
  const auto layout = Layout::FromPlan(Small());
  REQUIRE(layout.ok());
  REQUIRE(layout->variables().size() == 3);
  CHECK(layout->variables()[0].shards == std::vector<ShardId>{ShardId(0), ShardId(2)});
  CHECK(layout->slice(ShardId(2)).first_element == 6);
  CHECK(layout->slice(ShardId(2)).elements == 4);
  CHECK(layout->slice(ShardId(3)).elements == 1);
  CHECK(layout->variable_of(ShardId(1)).name == "a/bias");
  CHECK(layout->Find("a/bias") == 1);
  CHECK(layout->Find("b") == -1);
}

TEST_CASE("a plan whose shards do not partition its variables is refused by name") {
  struct Case {
    std::string name;
    v1::Plan plan;
    std::string says;
  };
  v1::Plan half = PlanOf({{0, 0, "w", {4}, 0, 4}});
  half.mutable_shards(0)->mutable_variable()->set_dtype(v1::DTYPE_FLOAT16);
  const std::vector<Case> cases = {
      {"none", PlanOf({}), "without shards"},
      {"a number twice", PlanOf({{0, 0, "w", {4}, 0, 2}, {0, 0, "w", {4}, 2, 4}}),
       "without gap or duplicate"},
      {"a number beyond", PlanOf({{1, 0, "w", {4}, 0, 4}}), "without gap or duplicate"},
      {"gap", PlanOf({{0, 0, "w", {4}, 0, 1}, {1, 0, "w", {4}, 2, 4}}), "gap or overlap"},
      {"overlap", PlanOf({{0, 0, "w", {4}, 0, 3}, {1, 0, "w", {4}, 2, 4}}), "gap or overlap"},
      {"tail missing", PlanOf({{0, 0, "w", {4}, 0, 3}}), "not all covered"},
      {"empty shard", PlanOf({{0, 0, "w", {4}, 2, 2}}), "outside the variable"},
      {"beyond the rows", PlanOf({{0, 0, "w", {4}, 0, 5}}), "outside the variable"},
      {"two shapes", PlanOf({{0, 0, "w", {4}, 0, 2}, {1, 0, "w", {5}, 2, 4}}),
       "conflicting descriptions"},
      {"hole in the variables", PlanOf({{0, 1, "w", {4}, 0, 2}, {1, 1, "w", {4}, 2, 4}}),
       "without shards"},
      {"index beyond", PlanOf({{0, 9, "w", {4}, 0, 4}}), "index out of range"},
      {"overflow", PlanOf({{0, 0, "w", {1ull << 40, 1ull << 40}, 0, 1ull << 40}}), ""},
      {"half precision", half, "DTYPE_FLOAT16"},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    const auto layout = Layout::FromPlan(c.plan);
    REQUIRE_FALSE(layout.ok());
    CHECK_THAT(std::string(layout.status().message()), Catch::Contains(c.says));
  }
}

TEST_CASE(
    "pulled shards are assembled into one span for each variable, and only changed shards are "
    "copied") {
  const auto layout = std::make_shared<const Layout>(*Layout::FromPlan(Small()));
  PullCache cache(layout);
  WeightBuffer weights(layout);
  CHECK_FALSE(cache.held(ShardId(0)).has);
  REQUIRE(cache.Accept(Pulled(0, 6, 0, 1)).ok());
  REQUIRE(cache.Accept(Pulled(2, 4, 100, 1)).ok());
  REQUIRE(cache.Accept(Pulled(1, 2, 200, 5)).ok());
  CHECK(cache.held(ShardId(1)).vlsn == 5);
  weights.Absorb(cache.Take());
  CHECK_FALSE(weights.complete());
  REQUIRE(cache.Accept(Pulled(3, 1, 300, 1)).ok());
  weights.Absorb(cache.Take());
  REQUIRE(weights.complete());
  auto spans = weights.Spans();
  CHECK(std::vector<float>(spans[0].begin(), spans[0].end()) ==
        std::vector<float>{0, 1, 2, 3, 4, 5, 100, 101, 102, 103});
  CHECK(std::vector<float>(spans[1].begin(), spans[1].end()) == std::vector<float>{200, 201});
  CHECK(spans[2][0] == 300);
  CHECK(cache.Take().empty());

  // If the cache gets two answers for one shard, it must keep the newer one. The other shards must
  // not change.
  REQUIRE(cache.Accept(Pulled(2, 4, 500, 2)).ok());
  REQUIRE(cache.Accept(Pulled(2, 4, 600, 3)).ok());
  auto taken = cache.Take();
  REQUIRE(taken.size() == 1);
  weights.Absorb(std::move(taken));
  spans = weights.Spans();
  CHECK(spans[0][5] == 5);
  CHECK(spans[0][6] == 600);
  CHECK(spans[1][0] == 200);
}

TEST_CASE("a variable of one shard is read in its frame, unless the frame is large or unaligned") {
  const auto layout =
      std::make_shared<const Layout>(*Layout::FromPlan(PlanOf({{0, 0, "w", {64}, 0, 64}})));
  WeightBuffer weights(layout);
  auto whole = Pulled(0, 64, 0, 1);
  const auto* in_frame = reinterpret_cast<const float*>(whole.values.bytes.data());
  weights.Absorb({whole});
  CHECK(weights.Spans()[0].data() == in_frame);
  auto part = Pulled(0, 64, 7, 2, 1 << 20);
  weights.Absorb({part});
  CHECK(weights.Spans()[0].data() != reinterpret_cast<const float*>(part.values.bytes.data()));
  CHECK(weights.Spans()[0][1] == 8);
  auto odd = Pulled(0, 64, 9, 3, 0, 4);
  weights.Absorb({odd});
  CHECK(weights.Spans()[0].data() != reinterpret_cast<const float*>(odd.values.bytes.data()));
  CHECK(weights.Spans()[0][63] == 72);
}

// Provides memory for the first `left` requests and none after that. Counts the requests.
struct Rooms {
  int left = 1000, asked = 0;
  Allocator Hand() {
    return [this](std::size_t bytes) {
      return ++asked, left-- > 0 ? tensor::AlignedBuffer(bytes) : tensor::AlignedBuffer();
    };
  }
};

TEST_CASE(
    "with a given destination values are copied once, on arrival, and the computation reads them "
    "there") {
  const auto layout = std::make_shared<const Layout>(*Layout::FromPlan(Small()));
  Rooms rooms;
  PullCache cache(layout, rooms.Hand());
  WeightBuffer weights(layout);
  const auto all = [&](float first, std::uint64_t vlsn) {
    for (const auto& [shard, elements] :
         {std::pair{2u, 4u}, std::pair{0u, 6u}, std::pair{1u, 2u}, std::pair{3u, 1u}})
      REQUIRE(cache
                  .Accept(Pulled(shard, elements, first + 100.0f * static_cast<float>(shard), vlsn,
                                 1 << 20))
                  .ok());
    std::vector<PulledShard> taken = cache.Take();
    std::vector<const std::byte*> lie;
    for (const PulledShard& shard : taken) lie.push_back(shard.values.bytes.data());
    weights.Absorb(std::move(taken));
    REQUIRE(weights.complete());
    CHECK(reinterpret_cast<const std::byte*>(weights.Spans()[0].data()) == lie[0]);
    CHECK(lie[2] == lie[0] + 6 * 4);  // the two shards of the kernel are adjacent
    CHECK(reinterpret_cast<const std::byte*>(weights.Spans()[1].data()) == lie[1]);
    CHECK(reinterpret_cast<const std::byte*>(weights.Spans()[2].data()) == lie[3]);
    return weights.Spans();
  };
  const auto kernel = [&] {
    return std::vector<float>(weights.Spans()[0].begin(), weights.Spans()[0].end());
  };
  const float* const before = all(0, 1)[0].data();
  CHECK(rooms.asked == 3);  // one request for each variable
  CHECK(kernel() == std::vector<float>{0, 1, 2, 3, 4, 5, 200, 201, 202, 203});
  // The cache must not write to memory that a step may still read.
  REQUIRE(cache.Accept(Pulled(0, 6, 50, 2)).ok());
  CHECK(kernel() == std::vector<float>{0, 1, 2, 3, 4, 5, 200, 201, 202, 203});
  CHECK(cache.Take()[0].values.bytes.data() != reinterpret_cast<const std::byte*>(before));
  CHECK(all(7, 3)[0].data() != before);

  // An answer for one shard must be combined with the other shards, even if it is in a frame of its
  // own. If there are two answers, the newer one must be used.
  REQUIRE(cache.Accept(Pulled(2, 4, 500, 4)).ok());
  REQUIRE(cache.Accept(Pulled(2, 4, 600, 5)).ok());
  weights.Absorb(cache.Take());
  CHECK(kernel() == std::vector<float>{7, 8, 9, 10, 11, 12, 600, 601, 602, 603});
  REQUIRE(cache.Accept(Pulled(0, 6, 30, 6)).ok());
  weights.Absorb(cache.Take());
  CHECK(kernel() == std::vector<float>{30, 31, 32, 33, 34, 35, 600, 601, 602, 603});
  all(0, 7);

  // Memory is refused for both variables, or only for the second. The values must then be used
  // where they are, in the frames.
  rooms.left = 0;
  REQUIRE(cache.Accept(Pulled(0, 6, 70, 8)).ok());
  rooms.left = 1;
  REQUIRE(cache.Accept(Pulled(2, 4, 80, 8)).ok());
  REQUIRE(cache.Accept(Pulled(1, 2, 90, 8)).ok());
  weights.Absorb(cache.Take());
  CHECK(kernel() == std::vector<float>{70, 71, 72, 73, 74, 75, 80, 81, 82, 83});
  CHECK(weights.Spans()[1][1] == 91);
  CHECK(weights.Spans()[2][0] == 300);
}

TEST_CASE(
    "adjacent shards of different frames are not read as one span, because one frame may be "
    "freed") {
  const auto layout = std::make_shared<const Layout>(
      *Layout::FromPlan(PlanOf({{0, 0, "w", {32}, 0, 16}, {1, 0, "w", {32}, 16, 32}})));
  tensor::AlignedBuffer memory(128);
  std::fill(memory.floats().begin(), memory.floats().end(), 1.0f);
  const auto piece = [&](std::uint32_t shard, std::shared_ptr<const void> owner) {
    return PulledShard{
        ShardId(shard), {1, 1}, 1, {std::move(owner), {memory.data() + 64 * shard, 64}}, 64};
  };
  const auto frame = std::make_shared<int>();
  for (const bool one : {true, false}) {
    WeightBuffer weights(layout);
    weights.Absorb({piece(0, frame), piece(1, one ? frame : std::make_shared<int>())});
    CHECK((weights.Spans()[0].data() == memory.floats().data()) == one);
    CHECK(weights.Spans()[0][31] == 1);
  }
}

TEST_CASE("16-bit values are widened even if they could be read in their frame") {
  v1::Plan plan = PlanOf({{0, 0, "w", {32}, 0, 32}});
  plan.mutable_shards(0)->mutable_variable()->set_wire_dtype(v1::DTYPE_BFLOAT16);
  const auto layout = std::make_shared<const Layout>(*Layout::FromPlan(plan));
  const auto frame = std::make_shared<tensor::AlignedBuffer>(64);
  for (int i = 0; i < 32; ++i) reinterpret_cast<std::uint16_t*>(frame->data())[i] = 0x3f80;
  const PulledShard pulled{ShardId(0), {1, 1}, 1, {frame, {frame->data(), 64}}, 64};
  WeightBuffer wide(layout), narrow(layout, true);
  wide.Absorb({pulled});
  CHECK(wide.Spans()[0][31] == 1);
  narrow.Absorb({pulled});
  CHECK(narrow.Held()[0].data == frame->data());
}

TEST_CASE("an answer of another size or for another shard is refused and changes nothing") {
  const auto layout = std::make_shared<const Layout>(*Layout::FromPlan(Small()));
  Rooms rooms;
  PullCache cache(layout, rooms.Hand());
  CHECK_THAT(std::string(cache.Accept(Pulled(0, 5, 0, 1)).message()),
             Catch::Contains("a/kernel") && Catch::Contains("want=24 got=20"));
  CHECK(rooms.asked == 0);
  CHECK_FALSE(cache.Accept(Pulled(4, 5, 0, 1)).ok());
  CHECK_FALSE(cache.held(ShardId(0)).has);
  CHECK(cache.Take().empty());
}

TEST_CASE("a gradient is divided by shard without a copy, and lives as long as one of its pieces") {
  const auto layout = std::make_shared<const Layout>(*Layout::FromPlan(Small()));
  auto gradient = std::make_shared<GradientBuffer>(layout, true);
  gradient->Spans()[0][6] = 42;
  CHECK(gradient->ToWire() == -1);
  const float* row = &gradient->variable(0)[6];
  tensor::SharedBytes piece = GradientBuffer::Slice(gradient, ShardId(2));
  CHECK(reinterpret_cast<const float*>(piece.bytes.data()) == row);
  CHECK(piece.bytes.size() == 16);
  const std::weak_ptr<GradientBuffer> alive = gradient;
  gradient.reset();
  CHECK(*reinterpret_cast<const float*>(piece.bytes.data()) == 42);
  piece = {};
  CHECK(alive.expired());
}

// The gradients of two variables are in one block, 64 bytes apart. The bytes between them belong to
// neither variable.
TEST_CASE("bytes between the gradients of two variables are not sent") {
  struct Block final : tensor::BufferHome {
    alignas(64) std::byte bytes[128];
    void TakeBack(std::byte*, std::size_t) override {}
  };
  const auto layout = std::make_shared<const Layout>(
      *Layout::FromPlan(PlanOf({{0, 0, "a", {8}, 0, 8}, {1, 1, "b", {8}, 0, 8}})));
  const auto block = std::make_shared<Block>();
  std::fill(std::begin(block->bytes), std::end(block->bytes), std::byte{7});
  std::vector<tensor::AlignedBuffer> buffers;
  for (std::size_t v = 0; v < 2; ++v) buffers.emplace_back(block->bytes + 64 * v, 32, block);
  const auto gradient = std::make_shared<const GradientBuffer>(layout, std::move(buffers));
  v1::RequestHeader header;
  for (int i = 0; i < 2; ++i) header.add_pushes();
  std::vector<std::byte> frame;
  for (const tensor::SharedBytes& piece :
       wire::BuildRequest(&header, {GradientBuffer::Slice(gradient, ShardId(0)),
                                    GradientBuffer::Slice(gradient, ShardId(1))}))
    frame.insert(frame.end(), piece.bytes.begin(), piece.bytes.end());
  const auto at = static_cast<std::ptrdiff_t>(header.pushes(0).payload_offset());
  REQUIRE(frame.size() == header.pushes(0).payload_offset() + 64 + 32);
  CHECK(std::all_of(frame.begin() + at, frame.begin() + at + 32,
                    [](std::byte b) { return b == std::byte{7}; }));
  CHECK(std::all_of(frame.begin() + at + 32, frame.begin() + at + 64,
                    [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE(
    "with a wire type, values are widened on arrival, gradients narrowed in place, and overflows "
    "are named") {
  using tensor::WireType;
  for (const WireType wire : {WireType::kBFloat16, WireType::kFloat16}) {
    v1::Plan plan = Small();  // a/kernel is sent in 16 bits, the others are not
    for (int i = 0; i < 2; ++i)
      plan.mutable_shards(i)->mutable_variable()->set_wire_dtype(static_cast<v1::DType>(wire));
    const auto layout = std::make_shared<const Layout>(*Layout::FromPlan(plan));
    CHECK(layout->variables()[0].wire == wire);
    CHECK(layout->variables()[1].wire == WireType::kFloat32);
    CHECK(layout->slice(ShardId(2)).wire_bytes() == 8);
    CHECK(layout->slice(ShardId(1)).wire_bytes() == 8);

    PullCache cache(layout);
    WeightBuffer weights(layout);
    CHECK_THAT(std::string(cache.Accept(Pulled(0, 6, 0, 1)).message()),
               Catch::Contains("a/kernel") && Catch::Contains("want=12 got=24"));
    const auto narrow = [&](std::uint32_t shard, const std::vector<float>& values) {
      auto frame = std::make_shared<tensor::AlignedBuffer>(values.size() * 2);
      tensor::Narrow(wire, values.data(), values.size(), frame->data());
      return PulledShard{
          ShardId(shard), {1, 1}, 1, {frame, {frame->data(), frame->size()}}, frame->size()};
    };
    const std::vector<float> rows = {1, 2.5f, -3, 0.1f, 1e-7f, 100.25f, 7, 8, 9, 10};
    REQUIRE(cache.Accept(narrow(0, {rows.begin(), rows.begin() + 6})).ok());
    REQUIRE(cache.Accept(narrow(2, {rows.begin() + 6, rows.end()})).ok());
    REQUIRE(cache.Accept(Pulled(1, 2, 5, 1)).ok());
    REQUIRE(cache.Accept(Pulled(3, 1, 3, 1)).ok());
    weights.Absorb(cache.Take());
    REQUIRE(weights.complete());
    for (std::size_t i = 0; i < rows.size(); ++i)
      CHECK(weights.Spans()[0][i] == tensor::WidenOne(wire, tensor::NarrowOne(wire, rows[i])));
    CHECK(weights.Spans()[1][1] == 6);

    auto gradient = std::make_shared<GradientBuffer>(layout, true);
    for (std::size_t i = 0; i < rows.size(); ++i) gradient->variable(0)[i] = rows[i];
    gradient->variable(1)[1] = 1e30f;  // the wire type can represent this number
    CHECK(gradient->ToWire() == -1);
    const tensor::SharedBytes piece = GradientBuffer::Slice(gradient, ShardId(2));
    REQUIRE(piece.bytes.size() == 8);
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint16_t element;
      std::memcpy(&element, piece.bytes.data() + 2 * i, 2);
      CHECK(element == tensor::NarrowOne(wire, rows[6 + i]));
    }
    const tensor::SharedBytes bias = GradientBuffer::Slice(gradient, ShardId(1));
    CHECK(reinterpret_cast<const float*>(bias.bytes.data())[1] == 1e30f);
    GradientBuffer large(layout, true);
    large.variable(0)[3] = 70000.f;
    CHECK(large.ToWire() == (wire == WireType::kFloat16 ? 0 : -1));
  }
  v1::Plan odd = Small();
  odd.mutable_shards(0)->mutable_variable()->set_wire_dtype(v1::DTYPE_INT64);
  CHECK_THAT(std::string(Layout::FromPlan(odd).status().message()),
             Catch::Contains("unsupported wire type") && Catch::Contains("a/kernel"));
  odd = Small();
  odd.mutable_shards(0)->mutable_variable()->set_wire_dtype(v1::DTYPE_BFLOAT16);
  CHECK_THAT(std::string(Layout::FromPlan(odd).status().message()),
             Catch::Contains("conflicting descriptions"));
}

}  // namespace
}  // namespace evergrad::worker
