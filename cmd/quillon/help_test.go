package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestHelpWidth: the text of commands fits a terminal. Indented lines may be copied into a file, and stay on
// one line.
func TestHelpWidth(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long) {
			line = strings.TrimRight(line, "\n")
			if n := utf8.RuneCountInString(line); n > 90 && !strings.HasPrefix(line, " ") {
				t.Errorf("%s: %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd())
}
