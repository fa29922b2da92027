package main

import "github.com/quillon/quillon/internal/registry"

// kinds are the apps that a Spec may name.
var kinds = registry.Kinds
