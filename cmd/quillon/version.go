package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/version"
)

func showVersion(cmd *cobra.Command) error {
	v := version.This()
	return show(cmd, v, func(w io.Writer) {
		fmt.Fprintf(w, "quillon %s, %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
	})
}
