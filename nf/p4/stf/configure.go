package stf

import (
	"fmt"

	"github.com/quillon/quillon/nf/p4"
)

// Configure carries out the statements that set up a switch. It skips packets, expectations and checks.
func Configure(sw *p4.Switch, statements []Statement) error {
	r := &run{prog: sw.Program(), sw: sw, ports: map[uint32]*port{}, labels: map[string]label{}}
	for i := range statements {
		switch s := &statements[i]; s.Op {
		case Add, SetDefault, RemoveAll, Command:
			if err := r.do(s); err != nil {
				return fmt.Errorf("line %d: %w", s.Line, err)
			}
		}
	}
	return nil
}
