// Package tenantimages separates tenants' images from the owner's (docs/design/tenancy.md). It serves the kubelet's
// image service in front of containerd (Serve), and is the only registry of tenants' images (Relay). In containerd
// their names are below Registry and the consumer, so no tenant uses or replaces images of others, except those
// labelled policy.ShareLabel, and for virtual clusters policy.ProvidedLabel. It reads containerd's images and the settings of registries. It alone writes the socket
// and, by Hosts, containerd's configuration of Registry. Restart: names are in containerd; there is no other state.
// Failure: the kubelet has no image service, and containers wait until it is back.
package tenantimages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// Registry is the host of all tenants' images in containerd. It does not exist in the DNS.
const Registry = "tenants.rivulet.invalid"

// Bundled are the images that every device includes: the sandbox of pods, and the guide's example. They have no data of
// the owner, so tenants may use them.
var Bundled = []string{"rivulet.dev/pause:1", "rivulet.dev/hello:1"}

// maxMessage is the kubelet's own bound of an answer, in bytes.
const maxMessage = 16 << 20

// Socket is the path under a runtime folder.
func Socket(runDir string) string { return filepath.Join(runDir, "images.sock") }

// name is containerd's name for the image of a consumer's pod, and plain the name of the same image of this cluster.
func name(consumer, image string) (of, plain string, err error) {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", "", err
	}
	host := strings.Replace(strings.ToLower(reference.Domain(ref)), ":", "__", 1)
	of = strings.Join([]string{Registry, Tag(consumer), host, reference.Path(ref)}, "/") + strings.TrimPrefix(ref.String(), ref.Name())
	_, err = reference.ParseDockerRef(of)
	return of, ref.String(), err
}

// Members are the virtual clusters of this device.
type Members interface {
	// Members returns the virtual clusters with their groups.
	Members() map[peer.ID]offer.Member
}

// Run is Serve and a Relay together, until ctx ends or one of them fails.
func Run(ctx context.Context, socket, containerd string, members Members, cfg RelayConfig, ready func()) error {
	ctx, stop := context.WithCancel(ctx)
	ended, listens := make(chan error, 2), make(chan struct{})
	go func() { ended <- NewRelay(cfg).Serve(ctx, func() { close(listens) }) }()
	go func() {
		select {
		case <-listens:
			ended <- Serve(ctx, socket, containerd, members, ready)
		case <-ctx.Done():
			ended <- nil
		}
	}()
	err := <-ended
	stop()
	return errors.Join(err, <-ended)
}

// Serve is the kubelet's image service until ctx ends; containerd is the socket of containerd. ready is called once it
// listens.
func Serve(ctx context.Context, socket, containerd string, members Members, ready func()) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("images: %w", err)
	}
	back := backoff.DefaultConfig
	back.BaseDelay, back.MaxDelay = 100*time.Millisecond, time.Second
	conn, err := grpc.NewClient("unix://"+containerd, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: back, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	defer conn.Close()
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o600); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	runtime.RegisterImageServiceServer(server, &service{cri: runtime.NewImageServiceClient(conn), store: imagesapi.NewImagesClient(conn), members: members})
	defer context.AfterFunc(ctx, server.Stop)()
	ready()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

type service struct {
	runtime.UnimplementedImageServiceServer
	cri     runtime.ImageServiceClient
	store   imagesapi.ImagesClient
	members Members
}

func (s *service) ListImages(ctx context.Context, r *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return s.cri.ListImages(ctx, r)
}

func (s *service) RemoveImage(ctx context.Context, r *runtime.RemoveImageRequest) (*runtime.RemoveImageResponse, error) {
	return s.cri.RemoveImage(ctx, r)
}

func (s *service) ImageFsInfo(ctx context.Context, r *runtime.ImageFsInfoRequest) (*runtime.ImageFsInfoResponse, error) {
	return s.cri.ImageFsInfo(ctx, r)
}

// ImageStatus reports an image as present to a tenant if the owner shares it, a Course of the tenant names it, or this
// consumer has had it pulled. The ID is then its name, so that the kubelet's records of access by ID do not mix the owner and consumers, which may have
// the same content.
func (s *service) ImageStatus(ctx context.Context, r *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	consumer, tenant := r.GetImage().GetAnnotations()[policy.OriginLabel]
	if !tenant {
		return s.cri.ImageStatus(ctx, r)
	}
	of, plain, err := name(consumer, r.Image.Image)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if shared, err := s.shared(ctx, peer.ID(consumer), plain); err != nil {
		return nil, err
	} else if shared {
		of = plain
	}
	r.Image.Image = of
	answer, err := s.cri.ImageStatus(ctx, r)
	if err == nil && answer.Image != nil {
		answer.Image.Id = of
	}
	return answer, err
}

// shared reports whether the owner has labelled the image for all tenants or for a group of this one, or every device has
// it.
func (s *service) shared(ctx context.Context, consumer peer.ID, image string) (bool, error) {
	if slices.Contains(Bundled, image) {
		return true, nil
	}
	got, err := s.stored(ctx, image)
	if err != nil || got.GetLabels()[policy.ShareLabel] == "true" {
		return err == nil, err
	}
	_, groups, provided := strings.Cut(got.GetLabels()[policy.ProvidedLabel], "+")
	if !provided {
		return false, nil
	}
	names := strings.Split(groups, "+")
	return slices.ContainsFunc(s.members.Members()[consumer].Groups, func(g offer.Group) bool { return slices.Contains(names, g.Name) }), nil
}

// inNamespace is for requests of images of the kubelet's.
func inNamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
}

// stored is what containerd stores of an image; nil if it has none of that name.
func (s *service) stored(ctx context.Context, image string) (*imagesapi.Image, error) {
	got, err := s.store.Get(inNamespace(ctx), &imagesapi.GetImageRequest{Name: image})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	return got.GetImage(), err
}

// pinned is the label of an image that an operator has imported: perhaps no registry has it.
const pinned = "io.cri-containerd.pinned"

// pullOwn pulls an image of this cluster's own. The kubelet also pulls what was imported, once it has pulled the same
// content under another name: its records are by content. Then labels stay, and what no registry gives is taken as it is.
func (s *service) pullOwn(ctx context.Context, r *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	ref, err := reference.ParseDockerRef(r.GetImage().GetImage())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	before, err := s.stored(ctx, ref.String())
	if err != nil {
		return nil, err
	}
	// All tenants may use what is bundled, so nobody's registry replaces it, whatever its name is or the pull policy says.
	if before != nil && slices.Contains(Bundled, r.GetImage().GetImage()) {
		have, err := s.cri.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: r.Image})
		if err == nil && have.Image != nil {
			return &runtime.PullImageResponse{ImageRef: have.Image.Id}, nil
		}
	}
	answer, err := s.cri.PullImage(ctx, r)
	if before == nil {
		return answer, err
	}
	if err != nil && before.Labels[pinned] != "" {
		if have, statusErr := s.cri.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: r.Image}); statusErr == nil && have.Image != nil {
			return &runtime.PullImageResponse{ImageRef: have.Image.Id}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	after, err := s.stored(ctx, ref.String())
	if err != nil || after == nil {
		return answer, err
	}
	labels := maps.Clone(before.Labels)
	maps.Copy(labels, after.Labels)
	if len(labels) == len(after.Labels) {
		return answer, nil
	}
	after.Labels = labels
	_, err = s.store.Update(inNamespace(ctx), &imagesapi.UpdateImageRequest{Image: after, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}}})
	return answer, err
}

// PullImage pulls a tenant's image through the relay, under a name of its own.
func (s *service) PullImage(ctx context.Context, r *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	consumer, tenant := r.GetImage().GetAnnotations()[policy.OriginLabel]
	if !tenant {
		consumer, tenant = r.GetSandboxConfig().GetAnnotations()[policy.OriginLabel]
	}
	if !tenant {
		return s.pullOwn(ctx, r)
	}
	of, _, err := name(consumer, r.Image.Image)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	r.Image.Image, r.Image.UserSpecifiedImage = of, ""
	if a := r.Auth; a != nil {
		a.ServerAddress = "" // chosen by this registry, which has another name in containerd
		if a.Username == "" && a.IdentityToken != "" {
			a.Username, a.Password = tokenUser, a.IdentityToken
		}
	}
	if _, err := s.cri.PullImage(ctx, r); err != nil {
		return nil, err
	}
	return &runtime.PullImageResponse{ImageRef: of}, nil
}
