#include "cli/command.h"

int main(int argc, char** argv) { return kvlink::cli::RunCommandLine(argc, argv); }
