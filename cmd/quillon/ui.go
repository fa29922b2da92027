package main

import (
	"fmt"
	"io"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/ui"
	"github.com/quillon/quillon/nf/clock"
)

// uiAt is what ui prints once the page is there.
type uiAt struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

func newUICmd() *cobra.Command {
	var t target
	var addr string
	var insecure, change bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show a running instance in a browser",
		Long: `Serves a page that shows a running instance, until interrupted: the graph and what
each link carries, what apps cost and drop, a SuperNIC's regions and tenants, tables, the
way of a single frame, and captures to download. It changes nothing, unless --change
lets it change arguments of apps and tables, as quillon set and quillon table do.

The address that is printed has a token, without which nobody is answered; over ssh,
forward its port: ssh -L 8080:127.0.0.1:8080 HOST. At unix:PATH there is no token: the
socket is its user's alone. "quillon run --ui" serves the same page from the instance
itself.

An open page gets once a second what has changed. While nobody has the page open, the
instance is not asked.`,
		Example: "  quillon ui\n  quillon ui --name rack7 --listen 127.0.0.1:8080",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.dial()
			if err != nil {
				return err
			}
			g, err := c.Graph()
			c.Close()
			if err != nil {
				return err
			}
			again := target{name: g.Name, control: t.control} // the same one, even if another instance starts beside it
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			s, err := ui.Listen(ui.Config{Address: addr, Anyone: insecure, Change: change, Dial: func() (*admin.Client, error) { return again.dial() }, Clock: clock.NewWall()})
			if err != nil {
				return err
			}
			defer s.Close()
			if err := show(cmd, uiAt{g.Name, s.URL()}, func(w io.Writer) { fmt.Fprintf(w, "%s is shown at %s\n", g.Name, s.URL()) }); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
	t.add(cmd)
	cmd.Flags().StringVar(&addr, "listen", "127.0.0.1:0", "`address` of the page: host:port, port 0 for a free one, or unix:PATH")
	cmd.Flags().BoolVar(&change, "change", false, "let the page change arguments of apps, and tables")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "serve others too, in plain text: they need the token")
	return cmd
}
