package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quillon/quillon/controlplane/ctl/store/file"
	"github.com/quillon/quillon/nf/clock"
)

// The first revision is the file as it is.
func ExampleStore() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	s := &file.Store{Intent: filepath.Join(dir, "missing.yaml"), State: filepath.Join(dir, "state"), Clock: clock.NewManual(0)}
	defer s.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	r := <-s.Watch(ctx)
	fmt.Println(r.Number, os.IsNotExist(r.Err))
	// Output:
	// 1 true
}
