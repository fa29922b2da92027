package main

import "github.com/quillon/quillon/internal/registry"

// kinds returns the kinds of apps that a Spec may name.
var kinds = registry.Kinds
