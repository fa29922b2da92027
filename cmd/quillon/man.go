package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			pages, err := manPages(root, dir)
			if err != nil {
				return err
			}
			return show(cmd, map[string]any{"dir": dir, "pages": pages}, func(w io.Writer) {
				fmt.Fprintf(w, "%d pages in %s\n", pages, dir)
			})
		},
	}
}

// manPages writes the man pages of a command and its subcommands, and returns their number. (Cobra's own
// writer would link two parsers of other languages.)
func manPages(c *cobra.Command, dir string) (n int, err error) {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		k, err := manPages(sub, dir)
		if n += k; err != nil {
			return n, err
		}
	}
	c.InitDefaultHelpCmd()
	c.InitDefaultHelpFlag()
	return n + 1, os.WriteFile(filepath.Join(dir, manName(c)+".1"), []byte(manPage(c)), 0o644)
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns a command's page in the language of man(7). The date is fixed, so that pages are
// reproducible.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, ".SH %s\n", name) }
	fmt.Fprintf(&b, ".TH \"%s\" \"1\" \"Nov 2026\" \"quillon\" \"Quillon\"\n.nh\n.ad l\n", strings.ToUpper(manName(c)))
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", manText(manName(c)), manText(c.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&b, "\\fB%s\\fP\n", manText(c.UseLine()))
	if c.Runnable() && c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, ".br\n\\fB%s\\fP\n", manText(c.CommandPath()+" [command]"))
	}
	section("DESCRIPTION")
	manParagraphs(&b, c.Long)
	if c.Long == "" {
		manParagraphs(&b, c.Short)
	}
	manFlags(&b, "OPTIONS", c.NonInheritedFlags())
	manFlags(&b, "OPTIONS INHERITED FROM PARENT COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		section("EXAMPLE")
		fmt.Fprintf(&b, ".nf\n%s\n.fi\n", manText(c.Example))
	}
	var also []string
	if c.HasParent() {
		also = append(also, manName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			also = append(also, manName(sub))
		}
	}
	if slices.Sort(also); len(also) > 0 {
		section("SEE ALSO")
		for i, name := range also {
			also[i] = fmt.Sprintf("\\fB%s\\fP(1)", manText(name))
		}
		fmt.Fprintln(&b, strings.Join(also, ",\n"))
	}
	return b.String()
}

// manParagraphs writes the paragraphs of text. Paragraphs with indented lines are tables or commands, and
// keep their line breaks.
func manParagraphs(b *strings.Builder, text string) {
	for i, p := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if p = manText(p); strings.HasPrefix(p, " ") || strings.Contains(p, "\n ") || strings.Contains(p, "\n\t") {
			p = ".nf\n" + p + "\n.fi"
		}
		b.WriteString(p + "\n")
	}
}

func manFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(b, "\\fB\\-%s\\fP, ", f.Shorthand)
		}
		fmt.Fprintf(b, "\\fB%s\\fP", manText("--"+f.Name))
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			fmt.Fprintf(b, " \\fI%s\\fP", manText(kind))
		}
		if v := f.DefValue; v != "" && v != "false" && v != "[]" {
			usage += " (default " + v + ")"
		}
		fmt.Fprintf(b, "\n%s\n", manText(usage))
	})
}

// manText escapes text, so that troff takes none of it for a request.
func manText(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
