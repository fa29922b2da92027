package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"quillon": main})
}

// TestScript runs the command-line scripts. [root] holds where network
// namespaces can be made; a script that needs it says so when it skips.
func TestScript(t *testing.T) {
	namespaces := exec.Command("unshare", "-n", "true").Run() == nil
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			data, err := filepath.Abs("testdata")
			if err != nil {
				return err
			}
			e.Setenv("DATA", data)
			// Others must be able to read the scripts' files.
			return os.Chmod(e.WorkDir, 0o755)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "namespaces":
				return namespaces, nil
			}
			return false, nil
		},
	})
}
