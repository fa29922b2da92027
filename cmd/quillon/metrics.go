package main

import (
	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/metrics"
)

func newMetricsCmd() *cobra.Command {
	cmd := group("metrics", "Print Prometheus' rules and Grafana's dashboard for run --metrics",
		"  quillon metrics rules >/etc/prometheus/quillon.rules.yml")
	cmd.Long = `"quillon run --metrics 127.0.0.1:9100" serves metrics. These are files for the programs
that read them: alerts that somebody wants to be woken for, each with what to do, and a
dashboard.`
	for _, f := range []struct {
		use, short, example string
		text                func() []byte
	}{
		{"rules", "Print recording and alerting rules for Prometheus", "  quillon metrics rules >/etc/prometheus/quillon.rules.yml", func() []byte { return metrics.Rules }},
		{"dashboard", "Print a dashboard to import into Grafana", "  quillon metrics dashboard >quillon.json", metrics.Dashboard},
	} {
		cmd.AddCommand(&cobra.Command{Use: f.use, Short: f.short, Example: f.example, Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(f.text())
			return err
		}})
	}
	return cmd
}
