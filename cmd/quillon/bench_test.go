package main

import (
	"io"
	"strings"
	"testing"
)

// TestBenchACLRefuses is TestBenchP4Refuses for the ACL benchmark.
func TestBenchACLRefuses(t *testing.T) {
	var text strings.Builder
	if code := execute([]string{"bench", "acl-10000", "--rules", "0"}, io.Discard, &text); code != exitUsage || !strings.Contains(text.String(), "--rounds 11 --rules 0: want 1 or more, and 1 to 1000000") {
		t.Errorf("exit status %d, %s", code, text.String())
	}
}

// TestBenchP4Refuses: an error of the command line is told in one line.
func TestBenchP4Refuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--rounds 11 --routes 20000: want": {"--routes", "20000"},
		"--rounds 0 --routes 10000: want":  {"--rounds", "0"},
	} {
		var text strings.Builder
		if code := execute(append([]string{"bench", "p4"}, args...), io.Discard, &text); code != exitUsage || !strings.Contains(text.String(), want) {
			t.Errorf("%q: exit status %d, %s", args, code, text.String())
		}
	}
}
