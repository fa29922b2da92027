package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/dissector"
)

func newDissectorCmd() *cobra.Command {
	var install bool
	cmd := &cobra.Command{
		Use:   "dissector",
		Short: "Print what has Wireshark understand Clio and Clover",
		Long: `Prints a file in Lua for Wireshark and tshark: Clio's requests and answers on UDP port
1234, with the go-back-N header in front of them where the preference clio.gbn says so;
and, with clover.show, Clover's words in compare-and-swaps and entries.

Wireshark reads such files from its folder for personal plugins, where --install puts
it; tshark also takes -X lua_script:FILE.`,
		Example: "  quillon pcap dissector --install\n  quillon pcap dissector >quillon.lua\n  tshark -r in.pcap -X lua_script:quillon.lua -o clover.show:TRUE",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !install {
				_, err := cmd.OutOrStdout().Write(dissector.Lua)
				return err
			}
			home, err := os.UserHomeDir()
			if err != nil {
				return err
			}
			folder := filepath.Join(home, ".local/lib/wireshark/plugins")
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			file := filepath.Join(folder, "quillon.lua")
			if err := os.WriteFile(file, dissector.Lua, 0o644); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: Wireshark reads it when it starts\n", file)
			return nil
		},
	}
	cmd.Flags().BoolVar(&install, "install", false, "put it in this user's folder for plugins")
	return cmd
}
