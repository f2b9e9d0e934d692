#include <cstdio>

int main() {
  std::fputs("h3: no command yet\n", stderr);
  return 2;
}
