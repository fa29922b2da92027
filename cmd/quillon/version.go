package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version says which build this is: of which release or commit, by which
// compiler, for what.
type version struct {
	Version  string `json:"version"`            // of the module, as Go derives it from tags and commits; "(devel)": nothing told
	Revision string `json:"revision,omitempty"` // commit
	Modified bool   `json:"modified"`           // the tree had changes beside it
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func thisVersion() version {
	v := version{Version: "(devel)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if bi.Main.Version != "" {
		v.Version = bi.Main.Version
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func showVersion(cmd *cobra.Command) error {
	v := thisVersion()
	return show(cmd, v, func(w io.Writer) {
		fmt.Fprintf(w, "quillon %s, %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
	})
}
