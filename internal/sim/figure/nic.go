package figure

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/quillon/quillon/internal/sim"
)

// nic returns the model of the NIC: ConnectX-5's parameters, with those that the file replaces.
func (p *Params) nic() (sim.NIC, error) {
	n := sim.ConnectX5()
	if p.NIC == "" {
		return n, nil
	}
	b, err := os.ReadFile(p.NIC)
	if err != nil {
		return n, fmt.Errorf("nic: %w", err)
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return n, fmt.Errorf("nic %s: %w", p.NIC, err)
	}
	return n, nil
}
