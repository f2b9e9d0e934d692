// Reference lists of the end-to-end cases (golden/README 11), and what the reference made of them.
#pragma once

#include <string>
#include <vector>

#include "apps/parity/suite.h"
#include "pipeline/request.h"

namespace h3 {

// The media of the page by name of the case; empty for a case that it does not list.
std::vector<Reference> listed_references(const std::string& name);

// Normalised references and the pixels of the vision tower against the hashes of e2e.json.
void check_references(Suite& suite, const std::string& name, const Resolved& resolved, const Json& entry);

}  // namespace h3
