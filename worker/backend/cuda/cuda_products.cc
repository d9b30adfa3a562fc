#include "worker/backend/cuda/cuda_products.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda_types.h"
#include "worker/backend/cuda/kernels/scratch.h"

namespace evergrad::worker {
namespace {

EgPlanKey MatmulKey(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a,
                    bool transpose_b) {
  EgPlanKey key{};
  key.kind = EG_PLAN_MATMUL;
  key.m = m, key.n = n, key.k = k;
  key.transpose_a = transpose_a ? 1 : 0;
  key.transpose_b = transpose_b ? 1 : 0;
  return key;
}

// Returns the padding behind the last window. A window that does not fit is not used, so several
// values of this padding give the same outputs. The function chooses the value nearest to the
// padding in front, because cuDNN has engines mainly for equal padding on both sides.
std::int64_t PadBehind(std::int64_t out, std::int64_t stride, std::int64_t kernel,
                       std::int64_t before, std::int64_t in, std::int64_t given) {
  const std::int64_t needed = (out - 1) * stride + kernel - before - in;
  if (needed > given) return given;  // an invalid convolution; the library reports it
  return std::clamp<std::int64_t>(before, std::max<std::int64_t>(needed, 0),
                                  std::max<std::int64_t>(needed + stride - 1, 0));
}

EgPlanKey ConvKey(std::int32_t kind, const Conv2dShape& s) {
  EgPlanKey key{};
  key.kind = kind;
  key.batch = s.batch, key.in_h = s.in_h, key.in_w = s.in_w, key.in_c = s.in_c, key.out_h = s.out_h,
  key.out_w = s.out_w, key.filters = s.filters;
  key.kernel_h = s.kernel_h, key.kernel_w = s.kernel_w, key.stride_h = s.stride_h,
  key.stride_w = s.stride_w;
  key.pad_top = s.pad_top, key.pad_left = s.pad_left;
  key.pad_bottom = PadBehind(s.out_h, s.stride_h, s.kernel_h, s.pad_top, s.in_h, s.pad_bottom);
  key.pad_right = PadBehind(s.out_w, s.stride_w, s.kernel_w, s.pad_left, s.in_w, s.pad_right);
  return key;
}

std::int32_t AlignmentOf(std::initializer_list<const void*> pointers) {
  std::uintptr_t all = 0;
  for (const void* const p : pointers) all |= reinterpret_cast<std::uintptr_t>(p);
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
}

// Returns whether the gradients of a convolution equal the gradients of a dense layer at each
// position. The sizes must be multiples of 16 bytes, because a 16-bit product of other sizes would
// be computed in float32.
bool IsProduct(const Conv2dShape& s) {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 &&
         s.out_h == s.in_h && s.out_w == s.in_w && s.in_c % 8 == 0 && s.filters % 8 == 0;
}

}  // namespace

// ---- Primitives

void CudaProducts::DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x,
                                AnyIn w, In b, Activation activation, AnyOut y) {
  EgPlanKey key = MatmulKey(batch, out, in, false, false);
  SetTypes(&key, x.type(), y.type());
  // If there is an activation, the kernel that computes it also adds the bias. Otherwise the
  // product itself adds the bias, which is possible only if the bias has the type of the output.
  key.bias = !b.empty() && activation == Activation::kLinear && y.is_float32() ? 1 : 0;
  key.alignment = AlignmentOf({x.data(), w.data(), b.data(), y.data()});
  EgPlanArguments p{};
  p.a = x.data(), p.b = w.data(), p.bias = b.data(), p.d = y.data();
  bool added = key.bias != 0;
  if (!plans_.Run("dense forward", key, p)) {
    added = false;
    key.bias = 0;
    MustRunPlan("dense forward", key, p);
  }
  FinishRows(batch, out, added ? In() : b, activation, y);
}

void CudaProducts::DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x,
                                 AnyIn w, Activation activation, AnyIn y, AnyOut dy, AnyOut dx,
                                 Out dw, Out db) {
  ThroughActivation(activation, batch, out, y, dy);
  const AnyIn g = Narrow(dy, x.type());
  if (g.empty()) return;
  EgPlanKey key = MatmulKey(in, out, batch, true, false);
  SetTypes(&key, x.type(), Element::kFloat32);
  key.bias_gradient = db.empty() ? 0 : 1;
  key.alignment = AlignmentOf({x.data(), g.data(), dw.data(), db.data()});
  EgPlanArguments p{};
  p.a = x.data(), p.b = g.data(), p.d = dw.data(), p.sums = db.data();
  if (!plans_.Run("dense weight gradient", key, p)) {
    key.bias_gradient = 0;
    MustRunPlan("dense weight gradient", key, p);
    if (!db.empty()) ColumnSums(batch, out, dy, db);
  }
  if (dx.empty()) return;
  key = MatmulKey(batch, in, out, false, true);
  SetTypes(&key, x.type(), dx.type());
  key.alignment = AlignmentOf({g.data(), w.data(), dx.data()});
  p = {};
  p.a = g.data(), p.b = w.data(), p.d = dx.data();
  MustRunPlan("dense input gradient", key, p);
}

void CudaProducts::Conv2dForward(const Conv2dShape& s, AnyIn x, AnyIn w, In b,
                                 Activation activation, AnyOut y) {
  float* const filters = Filters(s);
  if (filters == nullptr) return;
  const std::int64_t window = s.kernel_h * s.kernel_w * s.in_c,
                     positions = s.batch * s.out_h * s.out_w;
  Compute(EgTranspose{window, s.filters, w.data(), filters, ToC(w.type()), ToC(w.type())});
  EgPlanKey key = ConvKey(EG_PLAN_CONV, s);
  SetTypes(&key, x.type(), y.type());
  key.alignment = AlignmentOf({x.data(), filters, b.data(), y.data()});
  key.bias = b.empty() ? 0 : 1;
  key.relu = activation == Activation::kRelu ? 1 : 0;
  EgPlanArguments p{};
  p.a = x.data(), p.b = filters, p.bias = b.data(), p.d = y.data();
  if ((key.bias != 0 || key.relu != 0) &&
      (activation == Activation::kLinear || activation == Activation::kRelu) &&
      RunAnyPlan("conv2d forward", key, p))
    return;
  key.bias = key.relu = 0;
  MustRunPlan("conv2d forward", key, p);
  FinishRows(positions, s.filters, b, activation, y);
}

void CudaProducts::Conv2dBackward(const Conv2dShape& s, AnyIn x, AnyIn w, Activation activation,
                                  AnyIn y, AnyOut dy, AnyOut dx, Out dw, Out db) {
  const std::int64_t window = s.kernel_h * s.kernel_w * s.in_c,
                     positions = s.batch * s.out_h * s.out_w;
  // cuDNN's only engine with 16-bit operands and float32 results computes a long sum in one piece,
  // which took half of a step of ResNet-50. cuBLASLt divides the sum into parallel parts.
  if (IsProduct(s))
    return DenseBackward(positions, s.in_c, s.filters, x, w, activation, y, dy, dx, dw, db);
  float* const filters = Filters(s);
  if (filters == nullptr) return;
  ThroughActivation(activation, positions, s.filters, y, dy);
  if (!db.empty()) ColumnSums(positions, s.filters, dy, db);
  EgPlanKey key = ConvKey(EG_PLAN_CONV_FILTER, s);
  // The product is summed in float32, and each sum is rounded once to the type of the operands.
  SetTypes(&key, x.type(), x.type());
  key.alignment = AlignmentOf({x.data(), filters, dy.data()});
  EgPlanArguments p{};
  p.a = dy.data(), p.b = x.data(), p.d = filters;
  MustRunPlan("conv2d weight gradient", key, p);
  Compute(EgTranspose{s.filters, window, filters, dw.data(), ToC(x.type()), EG_FLOAT32});
  if (dx.empty()) return;
  Compute(EgTranspose{window, s.filters, w.data(), filters, ToC(w.type()), ToC(w.type())});
  key = ConvKey(EG_PLAN_CONV_DATA, s);
  SetTypes(&key, x.type(), dx.type());
  key.alignment = AlignmentOf({dx.data(), filters, dy.data()});
  p = {};
  p.a = dy.data(), p.b = filters, p.d = dx.data();
  MustRunPlan("conv2d input gradient", key, p);
}

// ---- Plans

// Does the same as PlanCache::Run. A convolution with more padding on one side than on the other
// may have no plan, because few of cuDNN's engines, or none, support such padding. In this case a
// copy of the input with zeros around each image is used.
bool CudaProducts::RunAnyPlan(const char* name, const EgPlanKey& key,
                              const EgPlanArguments& arguments) {
  if (plans_.Run(name, key, arguments)) return true;
  if (key.pad_top == key.pad_bottom && key.pad_left == key.pad_right) return false;
  EgPlanKey even = key;
  const std::int64_t rows = std::abs(key.pad_bottom - key.pad_top),
                     columns = std::abs(key.pad_right - key.pad_left);
  const std::int64_t above = std::max<std::int64_t>(key.pad_top - key.pad_bottom, 0),
                     left = std::max<std::int64_t>(key.pad_left - key.pad_right, 0);
  even.in_h += rows, even.in_w += columns;
  even.pad_top = even.pad_bottom = std::min(key.pad_top, key.pad_bottom);
  even.pad_left = even.pad_right = std::min(key.pad_left, key.pad_right);
  const std::int32_t type = key.kind == EG_PLAN_CONV_DATA ? key.d_type : key.type;
  const std::int64_t elements = even.batch * even.in_h * even.in_w * even.in_c;
  if (elements > kElementsMax) return false;
  std::byte* const padded = work_.Grow(WorkPiece::kPadded, elements * (type == EG_FLOAT32 ? 4 : 2));
  if (padded == nullptr) return true;
  EgPlanArguments p = arguments;
  const void* const images = key.kind == EG_PLAN_CONV ? p.a : p.b;
  if (key.kind == EG_PLAN_CONV) p.a = padded;
  if (key.kind == EG_PLAN_CONV_DATA) p.d = padded;
  if (key.kind == EG_PLAN_CONV_FILTER) p.b = padded;
  even.alignment = AlignmentOf({p.a, p.b, p.d, key.bias != 0 ? p.bias : nullptr});
  if (const PlanCache::Choice* const choice = plans_.Find(even);
      choice != nullptr && choice->plan == nullptr && choice->no_memory.empty())
    return false;
  if (key.kind != EG_PLAN_CONV_DATA)
    Compute(EgPad{key.batch, key.in_h, key.in_w, even.in_h, even.in_w, key.in_c, above, left,
                  images, padded, type, 0});
  if (!plans_.Run(name, even, p)) return false;
  if (key.kind == EG_PLAN_CONV_DATA)
    Compute(EgPad{key.batch, even.in_h, even.in_w, key.in_h, key.in_w, key.in_c, -above, -left,
                  padded, arguments.d, type, 0});
  return true;
}

// Runs the product of the key. If the library has no plan for it, runs another product that is
// equally exact.
void CudaProducts::MustRunPlan(const char* name, const EgPlanKey& key,
                               const EgPlanArguments& arguments) {
  if (RunAnyPlan(name, key, arguments)) return;
  if (const PlanCache::Choice* const choice = plans_.Find(key);
      choice != nullptr && !choice->no_memory.empty())
    return error_.Refuse(name, absl::ResourceExhaustedError(absl::StrCat(
                                   "out of memory for an algorithm: ", choice->no_memory)));
  if (key.type != EG_FLOAT32) return RunWide(name, key, arguments);
  EgPlanKey exact = key;
  exact.tf32 = 0;
  if (key.tf32 != 0) return MustRunPlan(name, exact, arguments);
  const PlanCache::Choice* const choice = plans_.Find(key);
  const std::string why =
      choice == nullptr || choice->refused.empty() ? "" : absl::StrCat(": ", choice->refused);
  error_.Refuse(
      name, absl::InternalError(absl::StrCat("the library has no algorithm for this shape", why)));
}

// Computes a product of 16-bit operands in float32 and rounds the result once. The products are
// exact, because TF32 has all bits of the operands, and they use tensor cores if there is an
// algorithm. This function is for sizes that are not a multiple of 16 bytes, for which there may be
// few or no algorithms with 16 bits. The conversion costs a pass per operand.
void CudaProducts::RunWide(const char* name, EgPlanKey key, EgPlanArguments p) {
  const std::int64_t filters = key.filters * key.kernel_h * key.kernel_w * key.in_c;
  const std::int64_t inputs = key.batch * key.in_h * key.in_w * key.in_c,
                     outputs = key.batch * key.out_h * key.out_w * key.filters;
  std::int64_t a = key.m * key.k, b = key.k * key.n, d = key.m * key.n;
  if (key.kind == EG_PLAN_CONV) a = inputs, b = filters, d = outputs;
  if (key.kind == EG_PLAN_CONV_DATA) a = outputs, b = filters, d = inputs;
  if (key.kind == EG_PLAN_CONV_FILTER) a = outputs, b = inputs, d = filters;
  const auto bytes = [](std::int64_t elements) { return (4 * elements + 255) / 256 * 256; };
  const std::int32_t d_type = key.d_type;
  void* const result = p.d;
  std::byte* const wide =
      work_.Grow(WorkPiece::kWidened, bytes(a) + bytes(b) + (d_type == EG_FLOAT32 ? 0 : bytes(d)));
  if (wide == nullptr) return;
  std::byte* const wide_b = wide + bytes(a);
  Compute(EgCast{a, p.a, wide, key.type, EG_FLOAT32});
  Compute(EgCast{b, p.b, wide_b, key.type, EG_FLOAT32});
  p.a = wide, p.b = wide_b;
  if (d_type != EG_FLOAT32) p.d = wide_b + bytes(b);
  key.type = key.d_type = EG_FLOAT32;
  key.tf32 = 1;
  key.alignment = AlignmentOf({p.a, p.b, p.d});
  ++products_widened_;
  MustRunPlan(name, key, p);
  if (d_type != EG_FLOAT32) Compute(EgCast{d, p.d, result, EG_FLOAT32, d_type});
}

// ---- Parts of primitives

// Computes y = activation(y + b) in one pass, and softmax in a second pass. Does nothing if there
// is neither a bias nor an activation.
void CudaProducts::FinishRows(std::int64_t rows, std::int64_t columns, In b, Activation activation,
                              AnyOut y) {
  if (!b.empty() || (activation != Activation::kLinear && activation != Activation::kSoftmax))
    Compute(EgBiasActivate{rows, columns, b.data(), y.data(), ToC(activation), ToC(y.type())});
  if (activation == Activation::kSoftmax)
    Compute(EgSoftmax{rows, columns, y.data(), y.data(), ToC(y.type()), 0});
}

void CudaProducts::ThroughActivation(Activation activation, std::int64_t rows, std::int64_t columns,
                                     AnyIn y, AnyOut dy) {
  if (activation != Activation::kLinear) ActivationBackward(activation, rows, columns, y, dy, dy);
}

void CudaProducts::ColumnSums(std::int64_t rows, std::int64_t columns, AnyIn x, Out y) {
  double* const scratch = Scratch<double>(cuda::ColumnScratch(rows, columns, 1));
  if (scratch != nullptr)
    Compute(EgColumnSums{rows, columns, x.data(), y.data(), scratch, ToC(x.type()), 0});
}

// Returns `x` converted to `type`, valid until the next call. Returns {} if an error was stored.
AnyIn CudaProducts::Narrow(AnyIn x, Element type) {
  if (x.type() == type) return x;
  std::byte* const to =
      work_.Grow(WorkPiece::kNarrowed, static_cast<std::int64_t>(x.size() * BytesOf(type)));
  if (to == nullptr) return {};
  Compute(EgCast{SizeOf(x), x.data(), to, ToC(x.type()), ToC(type)});
  return {to, x.size(), type};
}

void CudaProducts::SetTypes(EgPlanKey* key, Element operands, Element result) const {
  key->type = ToC(operands);
  key->d_type = ToC(result);
  key->tf32 = tf32_ && operands == Element::kFloat32 ? 1 : 0;
}

float* CudaProducts::Filters(const Conv2dShape& s) {
  return reinterpret_cast<float*>(work_.Grow(
      WorkPiece::kFilters,
      static_cast<std::int64_t>(sizeof(float)) * s.kernel_h * s.kernel_w * s.in_c * s.filters));
}

}  // namespace evergrad::worker
