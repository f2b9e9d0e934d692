// What can be asked of a set of model files, told from names and shapes without reading weights.
#pragma once

#include "pipeline/request.h"
#include "store/model_files.h"

namespace h3 {

ModelFacts model_facts(const ModelFiles& files);

}  // namespace h3
