// Package version says which build a program is.
package version

import (
	"runtime"
	"runtime/debug"
)

// Version is of which release or commit a program is, by which compiler, for what.
type Version struct {
	// Version is the tag (v1.2.3) of the commit that was built, else what Go derives from the last tag, the commit's time and
	// the commit; "+dirty" behind it: there were changes beside it; "(devel)": nothing told.
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // commit
	Modified bool   `json:"modified"`           // the tree had changes beside it
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// This is the version of the program that runs.
func This() Version {
	v := Version{Version: "(devel)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
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
