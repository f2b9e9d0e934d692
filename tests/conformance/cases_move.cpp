#include "base/error.h"
#include "tests/conformance/cases.h"

namespace h3::conformance {
namespace {

// The same elements with two axes exchanged.
View transposed(View view, int a, int b) {
  std::swap(view.dim[a], view.dim[b]);
  std::swap(view.stride[a], view.stride[b]);
  return view;
}

}  // namespace

void add_move_cases(std::vector<Case>& cases) {
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      for (Layout layout : kLayouts) {
        const std::string types = strf("%s to %s%s", name_of(from), name_of(to), layout_text(layout));
        for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1}, {5000}, {7, 33}, {2, 3, 4, 5, 6}}) {
          cases.push_back({"copy", types + " " + dims_text(dims), [=](Env& e) {
                             const View x = e.in(dims, from, layout, 300), y = e.out(dims, to, layout);
                             return [&e, x, y] { e.ops.copy(x, y); };
                           }});
        }
        cases.push_back({"copy", types + " transposed", [=](Env& e) {
                           const View x = e.in({5, 6, 7}, from, layout), y = e.out({5, 7, 6}, to, layout);
                           return [&e, x, y] { e.ops.copy(transposed(x, 1, 2), y); };
                         }});
        cases.push_back(
            {"gather_rows", types, [=](Env& e) {
               const View x = e.in({9, 37}, from, layout), y = e.out({14, 37}, to, layout), i = e.ids(14, 9);
               return [&e, x, y, i] { e.ops.gather_rows(x, i, y); };
             }});
        cases.push_back({"scatter_rows", types, [=](Env& e) {
                           const View x = e.in({9, 37}, from, layout), y = e.out({14, 37}, to, layout);
                           const View i = e.distinct_ids(9, 14);
                           return [&e, x, y, i] { e.ops.scatter_rows(x, i, y); };
                         }});
      }
    }
  }
  for (DType type : kTypes) {
    for (Layout layout : kLayouts) {
      const std::string text = std::string(name_of(type)) + layout_text(layout);
      cases.push_back({"fill", text, [=](Env& e) {
                         const View y = e.out({6, 35}, type, layout);
                         return [&e, y] { e.ops.fill(y, -1.7f); };
                       }});
      cases.push_back({"gather_rows", text + " items of rank 3", [=](Env& e) {
                         const View x = e.in({4, 3, 11}, type, layout), y = e.out({6, 3, 11}, type), i = e.ids(6, 4);
                         return [&e, x, y, i] { e.ops.gather_rows(x, i, y); };
                       }});
      cases.push_back({"scatter_add_rows", text, [=](Env& e) {
                         const View x = e.in({9, 70}, type, layout), y = e.inout({14, 70}, type, layout);
                         const View i = e.distinct_ids(9, 14);
                         return [&e, x, y, i] { e.ops.scatter_add_rows(x, i, y); };
                       }});
    }
  }
  cases.push_back({"copy", "i32", [](Env& e) {
                     const View x = e.ids(21, 1000), y = e.also_output(e.ids(21, 1000));
                     return [&e, x, y] { e.ops.copy(x, y); };
                   }});
}

}  // namespace h3::conformance
