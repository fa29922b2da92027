package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/doctor"
)

func newDoctorCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor [INTERFACE...]",
		Short: "Look whether this machine has what quillon needs, and say what to do",
		Long: `Looks at the kernel, at what this user may do, and at interfaces (all of this network
namespace, or those that are named): driver, native or generic XDP, queues, MTU, bridges
and other programs. Each line is ok, note (it goes, and could go better) or bad (it does
not go), with what to do below. Nothing is changed. Exit status 1: something is bad.`,
		Example: "  quillon doctor\n  quillon doctor eth1 eth2",
		RunE: func(cmd *cobra.Command, args []string) error {
			all := doctor.System()
			devs, err := doctor.Interfaces(args)
			if err != nil {
				return err
			}
			all = append(all, devs...)
			if err := show(cmd, all, func(w io.Writer) {
				for _, f := range all {
					fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.About, f.Says)
					if f.Do != "" {
						fmt.Fprintf(w, "\t\t-> %s\n", f.Do)
					}
				}
			}); err != nil {
				return err
			}
			if doctor.Worst(all) == doctor.Bad {
				return failed{errors.New("something is bad")}
			}
			return nil
		},
	}
}
