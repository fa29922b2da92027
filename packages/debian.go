package main

import (
	"errors"
	"os"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the packager
	"github.com/goreleaser/nfpm/v2/files"
)

const about = `network functions on packets in flight
A middlebox between two interfaces, or between a Linux bridge and one of its
ports, over AF_XDP: firewall, NAT, policer, VXLAN, ESP, load balancer, P4
programs, and functions for RDMA and disaggregated memory.
 .
quillon@NAME.service runs /etc/quillon/NAME.yaml.`

// debian writes the package of an architecture.
func (b *build) debian(arch string, all []file) (err error) {
	contents := files.Contents{{Destination: "/etc/quillon", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: b.time}}}
	for _, f := range all {
		contents = append(contents, &files.Content{Source: f.from, Destination: f.to, FileInfo: &files.ContentFileInfo{Mode: f.mode, MTime: b.time, Owner: "root", Group: "root"}})
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "quillon", Arch: arch, Platform: "linux", Version: debianVersion(b.version), VersionSchema: "none",
		Section: "net", Priority: "optional", Maintainer: "quillon <quillon@localhost>", Description: about, License: "Apache-2.0",
		MTime: b.time,
		Overridables: nfpm.Overridables{
			Contents: contents, Recommends: []string{"iproute2"},
			Scripts: nfpm.Scripts{PostInstall: "debian/postinst", PreRemove: "debian/prerm", PostRemove: "debian/postrm"},
			Deb:     nfpm.Deb{Compression: "zstd"},
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	w, err := os.Create(b.name(arch + ".deb"))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, w), w.Close())
}
