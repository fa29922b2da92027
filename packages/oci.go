package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is what the OCI image is made of for an architecture.
type image struct {
	arch  string
	files []file
}

// oci writes one image of all architectures as an archive of the OCI image layout, which podman, skopeo and docker load.
func (b *build) oci(images []*image) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		img, err := b.image(i)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: "linux", Architecture: i.arch},
			Annotations: map[string]string{"org.opencontainers.image.ref.name": b.version},
		}})
	}
	dir, err := os.MkdirTemp(b.out, "oci")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	var all []file
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, file{path, strings.TrimPrefix(path, dir), 0o644})
		}
		return err
	}); err != nil {
		return err
	}
	w, err := os.Create(b.name("oci.tar"))
	if err != nil {
		return err
	}
	return errors.Join(archive(w, all, b.time), w.Close())
}

// image is that of an architecture: the program, and nothing beside.
func (b *build) image(i *image) (v1.Image, error) {
	var layer bytes.Buffer
	if err := archive(&layer, i.files[:1], b.time); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, l); err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: i.arch, OS: "linux", Created: v1.Time{Time: b.time}, RootFS: v1.RootFS{Type: "layers", DiffIDs: diffs(l)},
		Config: v1.Config{Entrypoint: []string{"/usr/bin/quillon"}, Labels: map[string]string{
			"org.opencontainers.image.title": "quillon", "org.opencontainers.image.version": b.version, "org.opencontainers.image.licenses": "Apache-2.0"}},
	})
}

// diffs are the digests of what is in a layer.
func diffs(l v1.Layer) []v1.Hash {
	h, err := l.DiffID()
	if err != nil {
		return nil
	}
	return []v1.Hash{h}
}
