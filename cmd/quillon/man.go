package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write a man page for every command into DIR",
		Example: "  quillon man ./man && man ./man/quillon-run.1",
		Args:    exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			// The date is fixed so that the pages are reproducible.
			date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
			head := &doc.GenManHeader{Title: "QUILLON", Section: "1", Source: "quillon", Manual: "Quillon", Date: &date}
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			if err := doc.GenManTree(root, head, dir); err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			pages, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			return show(cmd, map[string]any{"dir": dir, "pages": len(pages)}, func(w io.Writer) {
				fmt.Fprintf(w, "%d pages in %s\n", len(pages), dir)
			})
		},
	}
}
