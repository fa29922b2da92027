package quillon

import _ "github.com/anishathalye/porcupine"
