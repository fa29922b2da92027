// Package dissector has dissectors for Wireshark, in Lua: of Clio's frames, and of Clover's words in RDMA operations.
package dissector

import _ "embed"

// Lua is the file.
//
//go:embed quillon.lua
var Lua []byte
