module github.com/quillon/quillon/nffgo

go 1.26.0

replace github.com/quillon/quillon => ../

require (
	github.com/intel-go/nff-go v0.9.2
	github.com/quillon/quillon v0.0.0-00010101000000-000000000000
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/cilium/ebpf v0.22.0 // indirect
	github.com/gaissmai/bart v0.30.0 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/pkg/errors v0.8.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
)
