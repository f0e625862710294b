package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// checkpointAnnotation marks an index as that of a container's checkpoint (checkpointctl's lib/annotations.go).
const checkpointAnnotation = "org.criu.checkpoint.container.name"

// mostOfManifest bounds what is read of JSON; registries accept manifests of 4 MiB.
const mostOfManifest = 8 << 20

// RefuseOrders takes from containerd what obeys orders in images, which anybody writes: it is called before containerd
// starts, in its process.
//
//   - The restart monitor starts containers by labels, which CRI copies from the image, and logs to a program that a
//     label names: as root, on the host (GO-2026-5758). Kubernetes restarts its containers itself.
//   - An image that is a checkpoint has CRI pull another image and give it any name (GO-2026-5338), and restores what
//     the image says of devices and logs (GO-2026-5064, GO-2026-5622). Its index cannot be read.
func RefuseOrders() {
	// A filter gets each registration as containerd will use it.
	registry.Graph(func(r *plugin.Registration) bool {
		switch init := r.InitFn; {
		case r.Type == plugins.ContainerMonitorPlugin && r.ID == "restart":
			r.InitFn = func(*plugin.InitContext) (any, error) { return nil, plugin.ErrSkipPlugin }
		case r.Type == plugins.ContentPlugin:
			r.InitFn = func(ic *plugin.InitContext) (any, error) {
				s, err := init(ic)
				if err != nil {
					return nil, err
				}
				return withoutCheckpoints{s.(content.Store)}, nil
			}
		}
		return false
	})
}

// withoutCheckpoints is a store of content in which the indexes of checkpoints cannot be read.
type withoutCheckpoints struct{ content.Store }

// ReaderAt reads the blob, unless it is the index of a checkpoint, or JSON that is too large to be a manifest.
func (s withoutCheckpoints) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	if err := refused(r); err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", desc.Digest, err)
	}
	return r, nil
}

func refused(r content.ReaderAt) error {
	begin := make([]byte, min(64, r.Size()))
	if _, err := r.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if begin = bytes.TrimLeft(begin, " \t\r\n"); len(begin) > 0 && begin[0] != '{' || r.Size() == 0 {
		return nil
	}
	if r.Size() > mostOfManifest {
		return fmt.Errorf("%w: JSON of %d MiB is no manifest of an image; build the image again", errdefs.ErrInvalidArgument, r.Size()>>20)
	}
	text := make([]byte, r.Size())
	if _, err := r.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var index ocispec.Index
	err := json.Unmarshal(text, &index)
	if of, ok := index.Annotations[checkpointAnnotation]; ok && err == nil { // CRI does not read what it cannot decode
		return fmt.Errorf("%w: the image is a checkpoint of the container %.100q, and checkpoints are not restored here; use the image that the container was made from", errdefs.ErrInvalidArgument, of)
	}
	return nil
}
