#include "model/dit/session.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "ops/values.h"

namespace h3::dit {
namespace {

// Calls of one block, for the lifetimes of the workspace; what is alive in all of them outlives the block. `wide` holds
// the input of the attention branch and, once that is consumed, the heads' output; it carries over into the next block.
enum Call : int { kStart = 0, kNorm1, kHeads, kOut, kNorm2, kMlp, kEnd };

// The MLP's hidden layer takes 2 ffn values a row; from here on it is made in chunks of rows that fit where q, k and v
// were, so that long sequences do not pay for it twice.
constexpr int64_t kUnchunkedBytes = int64_t{256} << 20;

int64_t mlp_chunk(const DitConfig& config, int64_t rows, DType type) {
  if (rows * 2 * config.ffn * size_of(type) <= kUnchunkedBytes) return rows;
  const int64_t room = rows * std::max<int64_t>(3 * config.inner() - 2 * config.hidden, config.hidden);
  const int64_t fitting = std::max<int64_t>(room / (2 * config.ffn), 256);
  const int64_t chunks = (rows + fitting - 1) / fitting;
  return std::min(rows, ((rows + chunks - 1) / chunks + 63) / 64 * 64);
}

class Session final : public DitSession {
 public:
  Session(Model& model, DitRequest request, const std::vector<LoadedUse>& uses, const ModulationPlan& plan,
          std::shared_ptr<const ModulationBank> bank, const Control& control);

  void embed(int evaluation, const View& video_rows, const View& audio_rows) override;
  void blocks(int64_t first, int64_t last) override;
  void head(const View& video_velocity, const View& audio_velocity) override;
  View modulated_input() override;
  SparseReport sparse_report() override;
  int64_t sparse_calls() const override { return sparse_calls_; }
  const View& residual() const override { return x_; }
  int64_t layers() const override { return model_.source.config.layers; }
  int64_t bytes() const override { return workspace_.bytes(); }

 private:
  void check_request(const DitRequest& request) const;
  void upload_tables(const ModulationPlan& plan);
  void refine_text(const std::vector<float>& text);
  void embed_conditions(const DitRequest& request);
  void embed_runs(const Linear& linear, const std::vector<int64_t>& packed, int64_t count, const View& rows);
  Modulation modulation(int64_t block, int64_t chunk) const;
  Gate gate(int64_t block, int64_t chunk) const;
  void run_block(int64_t i, bool norm_follows);
  void feed(const Linear& reader, const BranchUses& branches);
  bool recordable(int64_t first, int64_t last) const;
  void repeat_blocks(int64_t first, int64_t last, bool norm_follows);
  BlockScratch scratch(int64_t rows) const;
  bool sparse_here(int64_t block) const;

  Model& model_;
  Ops& ops_;
  const PackedLayout& layout_;
  std::shared_ptr<const ModulationBank> bank_;
  const Control& control_;
  Probe probe_;
  std::vector<AdapterUse> adapters_;  // kept while the session lives
  std::vector<BlockBranches> branches_, refiner_branches_;
  int64_t static_rows_, evaluations_;
  AttentionOptions how_;
  int64_t exact_keys_ = 0;  // rows before the target video
  int64_t sparse_calls_ = 0, dense_calls_ = 0;
  Tensor exact_blocks_;  // [1] i32, of the first sparse call
  int evaluation_ = 0;
  int64_t record_blocks_;
  std::vector<bool> ran_;  // blocks that have run in this session: what their calls take is there
  std::map<std::tuple<int64_t, int64_t, bool>, std::unique_ptr<Recording>> recordings_;  // by the arguments of repeat

  Workspace workspace_;
  View x_;               // [S, hidden] the residual stream
  View fixed_;           // [text and conditions, hidden] embedded once
  View h1_, attention_;  // [S, hidden], [S, inner]: the two uses of `wide`
  View qkv_, y1_, h2_, y2_, gate_value_, low_;
  View ids_, final_ids_;  // [evaluations, S], [evaluations, targets] i32
  View now_, final_now_;  // the row numbers of the current evaluation: the same addresses in every evaluation
  Rope rope_;
};

int64_t adapter_rank(const std::vector<LoadedUse>& uses) {
  int64_t rank = 0;
  for (const LoadedUse& use : uses) rank = std::max(rank, use.adapter->largest_rank());
  return rank;
}

Session::Session(Model& model, DitRequest request, const std::vector<LoadedUse>& uses, const ModulationPlan& plan,
                 std::shared_ptr<const ModulationBank> bank, const Control& control)
    : model_(model),
      ops_(model.ops),
      layout_(*request.layout),
      bank_(std::move(bank)),
      control_(control),
      probe_(model.ops, std::move(request.probe)),
      adapters_(std::move(request.adapters)),
      branches_(branches_of(uses, lora::Site::Stack::trunk, model.source.config.layers)),
      refiner_branches_(branches_of(uses, lora::Site::Stack::refiner, model.source.config.refiner_layers)),
      static_rows_(layout_.first_target()),
      evaluations_(static_cast<int64_t>(request.video_times.size())),
      how_(request.attention),
      exact_keys_(layout_.rows - layout_.target_video_rows()),
      record_blocks_(request.record_blocks),
      ran_(static_cast<size_t>(model.source.config.layers)) {
  check_request(request);
  if (how_.sparse) exact_blocks_ = upload_i32(ops_.device(), {0}, "exact blocks");
  const DitConfig& config = model.source.config;
  Device& device = ops_.device();
  workspace_ = Workspace(
      device, plan_workspace(session_slots(config, layout_, evaluations_, model.activation, adapter_rank(uses))),
      "the denoiser's activations");
  const int64_t rows = layout_.rows;
  const View wide = workspace_["wide"];
  h1_ = wide.slice(0, 0, rows * config.hidden).reshape({rows, config.hidden});
  attention_ = wide.slice(0, 0, rows * config.inner()).reshape({rows, config.inner()});
  x_ = workspace_["x"];
  fixed_ = workspace_["fixed"];
  qkv_ = workspace_["qkv"];
  y1_ = workspace_["y1"];
  h2_ = workspace_["h2"];
  y2_ = workspace_["y2"];
  gate_value_ = workspace_["gate_value"];
  if (adapter_rank(uses) > 0) low_ = workspace_["low"];
  ids_ = workspace_["ids"];
  final_ids_ = workspace_["final_ids"];
  now_ = workspace_["now"];
  final_now_ = workspace_["final_now"];
  rope_ = {workspace_["cos"], workspace_["sin"], RopeRounding::per_op};
  ops_.reserve(rows, config.inner());
  upload_tables(plan);
  embed_conditions(request);
  refine_text(request.text);
  ops_.sync();
}

void Session::check_request(const DitRequest& request) const {
  const DitConfig& config = model_.source.config;
  const int64_t expected = layout_.text_count() * config.text_dim;
  if (static_cast<int64_t>(request.text.size()) != expected) {
    fail(Code::data, "prompt embeddings hold %zu values; %lld rows of %lld are needed by %s", request.text.size(),
         static_cast<long long>(layout_.text_count()), static_cast<long long>(config.text_dim),
         model_.source.origin.c_str());
  }
  H3_ASSERT(static_cast<int64_t>(request.condition_video.size()) == layout_.condition_video_rows * config.video_row);
  H3_ASSERT(static_cast<int64_t>(request.condition_audio.size()) == layout_.condition_audio_rows * config.audio_row);
  H3_ASSERT(request.video_times.size() == request.audio_times.size() && !request.video_times.empty());
}

void Session::upload_tables(const ModulationPlan& plan) {
  Device& device = ops_.device();
  if (!holds_values(device)) return;
  const RotaryTables tables = rotary_tables(layout_.position, model_.source.inv_freq);
  device.upload(tables.cos.data(), rope_.cos);
  device.upload(tables.sin.data(), rope_.sin);
  device.upload(plan.ids.data(), ids_);
  device.upload(plan.final_ids.data(), final_ids_);
}

BlockScratch Session::scratch(int64_t rows) const {
  return {qkv_.slice(0, 0, rows), attention_.slice(0, 0, rows),
          gate_value_.slice(0, 0, std::min(rows, gate_value_.dim[0])), low_};
}

// Projection and two plain pre-norm blocks over the text rows, once per request (spec dit 2.2).
void Session::refine_text(const std::vector<float>& text) {
  const DitConfig& config = model_.source.config;
  const int64_t rows = layout_.text_count();
  if (rows == 0) return;
  workspace_.enter(kStart);
  const View e = x_.slice(0, 0, rows);
  const Tensor in =
      upload_f32(ops_.device(), text.data(), {rows, config.text_dim}, model_.activation, "prompt embeddings");
  ops_.linear(*model_.text_in, in, e);
  probe_("context_embedder", e);
  const auto part = [&](const View& view) { return view.slice(0, 0, rows); };
  for (size_t i = 0; i < model_.refiner.size(); ++i) {
    control_.check();
    const Block& block = model_.refiner[i];
    const std::string name = "refiner" + std::to_string(i);
    workspace_.enter(kNorm1);
    ops_.rms_norm(e, block.norm1, config.norm_eps, NormRounding::once, part(h1_));
    workspace_.enter(kHeads);
    attention_heads(ops_, block, refiner_branches_[i], config, part(h1_), {}, scratch(rows), {}, probe_, name);
    workspace_.enter(kOut);
    adapted_linear(ops_, *block.out, refiner_branches_[i].out, part(attention_), low_, part(y1_));
    workspace_.enter(kNorm2);
    ops_.add(e, part(y1_), e);
    ops_.rms_norm(e, block.norm2, config.norm_eps, NormRounding::once, part(h2_));
    workspace_.enter(kMlp);
    mlp_branch(ops_, block, refiner_branches_[i], config, part(h2_), scratch(rows), part(y2_), probe_, name);
    workspace_.enter(kEnd);
    ops_.add(e, part(y2_), e);
    probe_("refiner_block." + std::to_string(i), e);
  }
  ops_.rms_norm(e, model_.refiner_norm, config.norm_eps, NormRounding::once, fixed_.slice(0, 0, rows));
  probe_("refiner_out", fixed_.slice(0, 0, rows));
  ops_.sync();  // the prompt embeddings are freed here
}

// Rows [0, count) of `packed` are numbers of the packed sequence; consecutive ones are projected in one call.
void Session::embed_runs(const Linear& linear, const std::vector<int64_t>& packed, int64_t count, const View& rows) {
  for (int64_t first = 0; first < count;) {
    int64_t last = first + 1;
    while (last < count && packed[last] == packed[last - 1] + 1) ++last;
    ops_.linear(linear, rows.slice(0, first, last - first), fixed_.slice(0, packed[first], last - first));
    first = last;
  }
}

void Session::embed_conditions(const DitRequest& request) {
  const DitConfig& config = model_.source.config;
  const int64_t videos = layout_.condition_video_rows, sounds = layout_.condition_audio_rows;
  if (videos > 0) {
    const Tensor rows = upload_f32(ops_.device(), request.condition_video.data(), {videos, config.video_row},
                                   DType::f32, "condition rows");
    embed_runs(*model_.video_in, layout_.video_rows, videos, rows);
    ops_.sync();  // the rows are freed here
  }
  if (sounds > 0) {
    const Tensor rows = upload_f32(ops_.device(), request.condition_audio.data(), {sounds, config.audio_row},
                                   DType::f32, "condition rows");
    embed_runs(*model_.audio_in, layout_.audio_rows, sounds, rows);
    ops_.sync();
  }
}

void Session::embed(int evaluation, const View& video_rows, const View& audio_rows) {
  H3_ASSERT(evaluation >= 0 && evaluation < evaluations_);
  control_.check();
  evaluation_ = evaluation;
  ops_.copy(ids_.select(0, evaluation), now_);
  ops_.copy(final_ids_.select(0, evaluation), final_now_);
  if (static_rows_ > 0) ops_.copy(fixed_, x_.slice(0, 0, static_rows_));
  const int64_t sounds = layout_.target_audio_rows();
  if (sounds > 0) ops_.linear(*model_.audio_in, audio_rows, x_.slice(0, static_rows_, sounds));
  ops_.linear(*model_.video_in, video_rows, x_.slice(0, static_rows_ + sounds, layout_.target_video_rows()));
  probe_("packed", x_);
  probe_("adaln_ids", now_);
}

// Chunks of a bank row: shift, scale, gate of attention, then of the MLP (spec dit 2.4).
Modulation Session::modulation(int64_t block, int64_t chunk) const {
  const int64_t hidden = model_.source.config.hidden;
  const View& rows = bank_->blocks[static_cast<size_t>(block)].view;
  return {rows.slice(1, chunk * hidden, hidden), rows.slice(1, (chunk + 1) * hidden, hidden), now_};
}

Gate Session::gate(int64_t block, int64_t chunk) const {
  const int64_t hidden = model_.source.config.hidden;
  return {bank_->blocks[static_cast<size_t>(block)].view.slice(1, chunk * hidden, hidden), now_};
}

// h1 holds the modulated norm of x on entry, and that of the next block on exit if `norm_follows`.
void Session::run_block(int64_t i, bool norm_follows) {
  const DitConfig& config = model_.source.config;
  const Block& block = model_.blocks.enter(i);
  const std::string name = probe_.active() ? "b" + std::to_string(i) : std::string();
  const BlockScratch views = scratch(layout_.rows);
  if (probe_.active()) probe_(name + ".adaln", bank_->blocks[static_cast<size_t>(i)]);
  workspace_.enter(kHeads);
  const BlockBranches& branches = branches_[static_cast<size_t>(i)];
  if (sparse_here(i)) {
    const View none;
    const SparseCall call{how_.tau, exact_keys_, sparse_calls_ == 0 ? exact_blocks_.view : none};
    attention_heads(ops_, block, branches, config, h1_, rope_, views, {.sparse = &call}, probe_, name);
  } else {
    attention_heads(ops_, block, branches, config, h1_, rope_, views, {.math = how_.math}, probe_, name);
  }
  workspace_.enter(kOut);
  adapted_linear(ops_, *block.out, branches.out, attention_, low_, y1_);
  if (probe_.active()) probe_(name + ".attn_out", y1_);
  workspace_.enter(kNorm2);
  feed(*block.fc1, branches.fc1);
  ops_.gate_norm(x_, y1_, gate(i, 2), block.norm2, config.norm_eps, modulation(i, 3), h2_);
  workspace_.enter(kMlp);
  mlp_branch(ops_, block, branches, config, h2_, views, y2_, probe_, name);
  workspace_.enter(kEnd);
  if (norm_follows) {
    const Block& next = model_.blocks.at(i + 1);
    feed(*next.qkv, branches_[static_cast<size_t>(i + 1)].qkv);
    ops_.gate_norm(x_, y2_, gate(i, 5), next.norm1, config.norm_eps, modulation(i + 1, 0), h1_);
  } else {
    ops_.gated_add(x_, y2_, gate(i, 5));
  }
  model_.blocks.leave(i);
  if (probe_.active()) probe_("block." + std::to_string(i), x_);
}

// The rows of the norm that follows are read by `reader`, and by its adapters if it has any.
void Session::feed(const Linear& reader, const BranchUses& branches) {
  ops_.feeds(reader, branches.empty() && !probe_.active());
}

void Session::blocks(int64_t first, int64_t last) {
  H3_ASSERT(first >= 0 && first <= last && last <= layers());
  if (first == last) return;
  const DitConfig& config = model_.source.config;
  const Block& block = model_.blocks.at(first);
  workspace_.enter(kNorm1);
  if (probe_.active()) {  // the norm alone, in h1 before its real use
    ops_.rms_norm(x_, block.norm1, config.norm_eps, NormRounding::once, h1_);
    probe_("b" + std::to_string(first) + ".norm1", h1_);
  }
  feed(*block.qkv, branches_[static_cast<size_t>(first)].qkv);
  ops_.norm_modulate(x_, block.norm1, config.norm_eps, modulation(first, 0), h1_);
  for (int64_t i = first; i < last;) {
    control_.check();
    ops_.pace();
    const int64_t end = std::min(i + std::max<int64_t>(record_blocks_, 1), last);
    if (recordable(i, end)) {
      repeat_blocks(i, end, end < last);
      dense_calls_ += end - i;
      i = end;
      continue;
    }
    run_block(i, i + 1 < last);
    ++(sparse_here(i) ? sparse_calls_ : dense_calls_);
    ran_[static_cast<size_t>(i)] = true;
    ++i;
  }
}

// Streamed weights lie elsewhere every time, and sparse calls are counted.
bool Session::recordable(int64_t first, int64_t last) const {
  if (record_blocks_ <= 0 || probe_.active() || last > model_.blocks.resident()) return false;
  for (int64_t i = first; i < last; ++i) {
    if (!ran_[static_cast<size_t>(i)] || sparse_here(i)) return false;
  }
  return true;
}

// What differs between evaluations lies in views: the rows of x and the row numbers of `now`.
void Session::repeat_blocks(int64_t first, int64_t last, bool norm_follows) {
  std::unique_ptr<Recording>& recording = recordings_[{first, last, norm_follows}];
  const auto calls = [=, this] {
    for (int64_t i = first; i < last; ++i) run_block(i, norm_follows || i + 1 < last);
  };
  if (recording == nullptr) recording = ops_.record(calls);
  if (recording != nullptr) return recording->replay();
  record_blocks_ = 0;  // this back end does not record
  calls();
}

bool Session::sparse_here(int64_t block) const {
  return how_.sparse && layout_.rows >= how_.minimum && evaluation_ >= how_.dense_steps && block >= how_.dense_blocks &&
         exact_keys_ > 0 && exact_keys_ < layout_.rows;
}

SparseReport Session::sparse_report() {
  SparseReport report{sparse_calls_, dense_calls_, 0, ""};
  if (!how_.sparse) return report;
  if (sparse_calls_ == 0) {
    report.reason = layout_.rows < how_.minimum
                        ? strf("the sequence has %lld rows, below the minimum of %lld",
                               static_cast<long long>(layout_.rows), static_cast<long long>(how_.minimum))
                        : strf("no evaluation from %d and no block from %d ran", how_.dense_steps, how_.dense_blocks);
    return report;
  }
  int32_t exact = 0;
  ops_.sync();
  ops_.device().download(exact_blocks_, &exact);
  const double blocks = static_cast<double>((layout_.rows + kSparseBlock - 1) / kSparseBlock);
  report.density = exact / (blocks * blocks * static_cast<double>(model_.source.config.heads));
  return report;
}

View Session::modulated_input() {
  const DitConfig& config = model_.source.config;
  ops_.norm_modulate(x_, model_.blocks.at(0).norm1, config.norm_eps, modulation(0, 0), h1_);
  return h1_;
}

void Session::head(const View& video_velocity, const View& audio_velocity) {
  const DitConfig& config = model_.source.config;
  const int64_t sounds = layout_.target_audio_rows(), targets = layout_.rows - static_rows_;
  const View rows = h1_.slice(0, 0, targets);
  const View& table = bank_->final_rows.view;
  const Modulation modulation{table.slice(1, 0, config.hidden), table.slice(1, config.hidden, config.hidden),
                              final_now_};
  ops_.norm_modulate(x_.slice(0, static_rows_, targets), model_.final_norm, config.final_norm_eps, modulation, rows);
  probe_("norm_out", rows);
  if (sounds > 0) ops_.linear(*model_.audio_out, rows.slice(0, 0, sounds), audio_velocity);
  ops_.linear(*model_.video_out, rows.slice(0, sounds, targets - sounds), video_velocity);
}

}  // namespace

RotaryTables rotary_tables(const std::vector<double>& position, const std::vector<float>& inv_freq) {
  RotaryTables tables;
  tables.cos.reserve(position.size() * inv_freq.size());
  tables.sin.reserve(position.size() * inv_freq.size());
  for (double coordinate : position) {  // [S, 3] and then frequencies: row-major [S, 3 pairs]
    for (float frequency : inv_freq) {
      const float angle = static_cast<float>(coordinate) * frequency;
      tables.cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      tables.sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
  return tables;
}

std::vector<Slot> session_slots(const DitConfig& config, const PackedLayout& layout, int64_t evaluations, DType type,
                                int64_t adapter_rank) {
  const int64_t rows = layout.rows, hidden = config.hidden, inner = config.inner(), fixed = layout.first_target();
  const auto keep = [](const char* name, DType slot_type, std::vector<int64_t> dims) {
    return Slot{name, slot_type, std::move(dims), kStart, kEnd};
  };
  const int64_t targets = rows - fixed;
  std::vector<Slot> slots = {
      keep("x", type, {rows, hidden}),
      keep("fixed", type, {fixed, hidden}),
      keep("wide", type, {rows * std::max(hidden, inner)}),
      keep("cos", DType::f32, {rows, 3 * config.rope_pairs}),
      keep("sin", DType::f32, {rows, 3 * config.rope_pairs}),
      keep("ids", DType::i32, {evaluations, rows}),
      keep("final_ids", DType::i32, {evaluations, targets}),
      keep("now", DType::i32, {rows}),
      keep("final_now", DType::i32, {targets}),
      {"qkv", type, {rows, 3 * inner}, kHeads, kHeads},
      {"y1", type, {rows, hidden}, kOut, kNorm2},
      {"h2", type, {rows, hidden}, kNorm2, kMlp},
      {"y2", type, {rows, hidden}, kMlp, kEnd},
      {"gate_value", type, {mlp_chunk(config, rows, type), 2 * config.ffn}, kMlp, kMlp},
  };
  if (adapter_rank > 0) slots.push_back(keep("low", type, {rows, adapter_rank}));
  return slots;
}

std::unique_ptr<DitSession> start_session(Model& model, DitRequest request, const std::vector<LoadedUse>& uses,
                                          const ModulationPlan& plan, std::shared_ptr<const ModulationBank> bank,
                                          const Control& control) {
  return std::make_unique<Session>(model, std::move(request), uses, plan, std::move(bank), control);
}

}  // namespace h3::dit
