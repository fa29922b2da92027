package bridge

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quillon/quillon/internal/ethtool"
	"golang.org/x/sys/unix"
)

// offload returns the offloads of the interface that can be changed, and whether each is on.
func offload(ifname string) (map[string]bool, error) {
	e, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	all, err := e.Features(ifname)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return map[string]bool{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("offloads of %s: %w", ifname, err)
	}
	out := map[string]bool{}
	for name, s := range all {
		if s.Available && !s.NeverChanged {
			out[name] = s.Requested
		}
	}
	return out, nil
}

// setOffload switches the offloads that differ from want. It ignores offloads that the
// interface does not have.
func setOffload(ifname string, want map[string]bool) error {
	now, err := offload(ifname)
	if err != nil {
		return err
	}
	change := map[string]bool{}
	for name, on := range want {
		if is, ok := now[name]; ok && is != on {
			change[name] = on
		}
	}
	if len(change) == 0 {
		return nil
	}
	e, err := ethtool.Open()
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.Change(ifname, change); err != nil {
		return fmt.Errorf("offloads of %s: %w", ifname, err)
	}
	return nil
}

// completeFrames turns transmit checksum and segmentation offloads of the interface off, so that its
// frames are complete as on a wire, and GRO on, so that a veth takes redirected XDP frames.
func completeFrames(ifname string) error {
	want, err := offload(ifname)
	if err != nil {
		return err
	}
	for name := range want {
		want[name] = want[name] && !strings.HasPrefix(name, "tx-checksum-") && !strings.HasSuffix(name, "-segmentation")
	}
	want["rx-gro"] = true
	return setOffload(ifname, want)
}
