// A checkpoint put together from parts of others: goldens store variants as the tensors that differ.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/tensor_source.h"

namespace h3 {

class OverlaySource final : public TensorSource {
 public:
  // Tensors of `over`, and those of `base` that `over` does not name and `keep` accepts.
  OverlaySource(std::shared_ptr<TensorSource> base, std::shared_ptr<TensorSource> over,
                const std::function<bool(const std::string&)>& keep)
      : base_(std::move(base)), over_(std::move(over)) {
    for (const TensorInfo& tensor : base_->tensors()) {
      if (over_->find(tensor.name) == nullptr && keep(tensor.name)) tensors_.push_back(tensor);
    }
    for (const TensorInfo& tensor : over_->tensors()) tensors_.push_back(tensor);
    index_tensors();
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return base_->metadata(); }
  const std::vector<std::string>& files() const override { return base_->files(); }
  std::string id() const override { return base_->id() + "+" + over_->id(); }

 private:
  std::shared_ptr<TensorSource> base_, over_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace h3
