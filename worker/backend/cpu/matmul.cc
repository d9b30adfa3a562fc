#include "worker/backend/cpu/matmul.h"

#include <unordered_map>
#include <utility>

namespace evergrad::worker::cpu {
namespace {

using dnnl::memory;

constexpr std::size_t kPlansMax = 256;  // as in cpu_backend.cc

memory::desc Desc(std::int64_t rows, std::int64_t columns, bool transposed, Element type) {
  return {
      {rows, columns}, ToDnnl(type), transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

// Returns a pointer for oneDNN, which only reads inputs but has no pointer to const.
void* Handle(const void* data) { return const_cast<void*>(data); }

}  // namespace

memory::data_type ToDnnl(Element e) {
  switch (e) {
    case Element::kFloat32: return memory::data_type::f32;
    case Element::kFloat16: return memory::data_type::f16;
    case Element::kBFloat16: return memory::data_type::bf16;
  }
  return memory::data_type::undef;
}

Matmul::Plan Matmul::Make(const MatmulShape& s) const {
  const memory::desc a = Desc(s.m, s.k, s.transpose_a, s.in),
                     b = Desc(s.k, s.n, s.transpose_b, s.in), c = Desc(s.m, s.n, false, s.out);
  const memory::desc bias({1, s.n}, memory::data_type::f32, memory::dims{s.n, 1});
  const dnnl::matmul::desc desc =
      s.with_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  Plan plan;
  plan.primitive = dnnl::matmul(dnnl::matmul::primitive_desc(desc, engine_));
  plan.a = memory(a, engine_, nullptr), plan.b = memory(b, engine_, nullptr),
  plan.c = memory(c, engine_, nullptr);
  if (s.with_bias) plan.bias = memory(bias, engine_, nullptr);
  return plan;
}

void Matmul::Multiply(const MatmulShape& s, AnyIn a, AnyIn b, In bias, AnyOut c) {
  auto found = plans_.find(s);
  if (found == plans_.end()) {
    Plan plan = Make(s);
    if (plans_.size() >= kPlansMax) plans_.clear();
    found = plans_.emplace(s, std::move(plan)).first;
  }
  Plan& plan = found->second;
  plan.a.set_data_handle(Handle(a.data()));
  plan.b.set_data_handle(Handle(b.data()));
  plan.c.set_data_handle(c.data());
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, plan.a}, {DNNL_ARG_WEIGHTS, plan.b}, {DNNL_ARG_DST, plan.c}};
  if (s.with_bias) {
    plan.bias.set_data_handle(Handle(bias.data()));
    arguments.emplace(DNNL_ARG_BIAS, plan.bias);
  }
  plan.primitive.execute(stream_, arguments);
}

}  // namespace evergrad::worker::cpu
