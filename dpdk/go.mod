module github.com/quillon/quillon/dpdk

go 1.26.0

replace github.com/quillon/quillon => ../

require (
	github.com/quillon/quillon v0.0.0-00010101000000-000000000000
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
)
