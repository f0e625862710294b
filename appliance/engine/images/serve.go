package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// source is the prefix of labels, by registry, of content pulled from a registry.
const source = "containerd.io/distribution.source."

// Find returns the digest of a name in containerd. Imported: it is from an archive, not from a registry.
func (c *Containerd) Find(ctx context.Context, name string) (d digest.Digest, imported bool, err error) {
	conn, err := grpc.NewClient("unix://"+Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", false, fmt.Errorf("images: %w", err)
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	got, err := imagesapi.NewImagesClient(conn).Get(ctx, &imagesapi.GetImageRequest{Name: name})
	if err != nil {
		return "", false, fmt.Errorf("images: %w", err)
	}
	if d, err = digest.Parse(got.GetImage().GetTarget().GetDigest()); err != nil {
		return "", false, fmt.Errorf("images: %w", err)
	}
	info, err := contentapi.NewContentClient(conn).Info(ctx, &contentapi.InfoRequest{Digest: d.String()})
	if err != nil {
		return "", false, fmt.Errorf("images: %w", err)
	}
	imported = true
	for label := range info.GetInfo().GetLabels() {
		if strings.HasPrefix(label, source) {
			imported = false
		}
	}
	return d, imported, nil
}

// Open opens a blob of containerd's content.
func (c *Containerd) Open(d digest.Digest) (*os.File, error) {
	if err := d.Validate(); err != nil {
		return nil, errors.Join(os.ErrNotExist, err)
	}
	return os.Open(blobPath(filepath.Join(c.agentDir(), "containerd", contentDir), d))
}
