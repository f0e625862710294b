package tenantimages

import (
	"context"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

func TestNames(t *testing.T) {
	for image, want := range map[string]string{
		"nginx":                                  "/docker.io/library/nginx:latest",
		"docker.io/library/nginx:1":              "/docker.io/library/nginx:1",
		"Quay.io:5000/a/b:1":                     "/quay.io__5000/a/b:1",
		"a.b/c:1@sha256:" + hash("1"):            "/a.b/c@sha256:" + hash("1"),
		"[::1]:5000/x":                           "",
		"a.b/" + strings.Repeat("a/", 120) + "b": "",
		"A b":                                    "",
	} {
		mine, _, err := name("mallory", image)
		if want == "" {
			if err == nil {
				t.Errorf("%s is %s, want refused", image, mine)
			}
			continue
		}
		if err != nil || !strings.HasPrefix(mine, Registry+"/") || !strings.HasSuffix(mine, want) {
			t.Errorf("%s is %s, %v; want %s", image, mine, err, want)
		}
		if others, _, _ := name("alice", image); others == mine {
			t.Errorf("%s is %s for both consumers", image, mine)
		}
	}
}

func hash(s string) string { return strings.Repeat(s, 64) }

// members are virtual clusters with their groups.
type members map[peer.ID]offer.Member

func (m members) Members() map[peer.ID]offer.Member { return m }

func in(groups ...string) (m offer.Member) {
	for _, g := range groups {
		m.Groups = append(m.Groups, offer.Group{Name: g})
	}
	return m
}

// runtimes is containerd as far as Serve sees it: images by name, and those with the label.
type runtimes struct {
	runtime.UnimplementedImageServiceServer
	imagesapi.UnimplementedImagesServer
	has    map[string]bool   // and whether it is shared
	given  map[string]string // values of policy.ProvidedLabel
	pinned map[string]bool
	fails  bool
	pulled []string
	auth   *runtime.AuthConfig
}

func (r *runtimes) ImageStatus(_ context.Context, in *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	if _, there := r.has[in.Image.Image]; there {
		return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: "sha256:" + hash("a")}}, nil
	}
	return &runtime.ImageStatusResponse{}, nil
}

func (r *runtimes) PullImage(_ context.Context, in *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	if r.fails {
		return nil, status.Error(codes.Unavailable, "no registry has it")
	}
	r.pulled, r.auth, r.has[in.Image.Image] = append(r.pulled, in.Image.Image), in.Auth, false // containerd's labels are its own then
	delete(r.pinned, in.Image.Image)
	return &runtime.PullImageResponse{ImageRef: "sha256:" + hash("a")}, nil
}

func (r *runtimes) Get(_ context.Context, in *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	shared, there := r.has[in.Name]
	if !there {
		return nil, status.Error(codes.NotFound, in.Name)
	}
	out := &imagesapi.Image{Name: in.Name, Labels: map[string]string{}}
	if shared {
		out.Labels[policy.ShareLabel] = "true"
	}
	if value := r.given[in.Name]; value != "" {
		out.Labels[policy.ProvidedLabel] = value
	}
	if r.pinned[in.Name] {
		out.Labels[pinned] = "pinned"
	}
	return &imagesapi.GetImageResponse{Image: out}, nil
}

func (r *runtimes) Update(_ context.Context, in *imagesapi.UpdateImageRequest) (*imagesapi.UpdateImageResponse, error) {
	if !slices.Equal(in.UpdateMask.GetPaths(), []string{"labels"}) {
		return nil, status.Error(codes.InvalidArgument, "more than labels")
	}
	r.has[in.Image.Name] = in.Image.Labels[policy.ShareLabel] == "true"
	r.pinned[in.Image.Name] = in.Image.Labels[pinned] != ""
	return &imagesapi.UpdateImageResponse{Image: in.Image}, nil
}

// kubelet is a client of Serve in front of below.
func (r *runtimes) kubelet(t *testing.T) (ctx context.Context, kubelet runtime.ImageServiceClient) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "containerd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtime.RegisterImageServiceServer(server, r)
	imagesapi.RegisterImagesServer(server, r)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- Serve(ctx, Socket(dir), l.Addr().String(), members{"db-ann": in("lab/db", "lab/year"), "web-ben": in("lab/web")}, func() { close(ready) })
	}()
	<-ready
	conn, err := grpc.NewClient("unix://"+Socket(dir), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return ctx, runtime.NewImageServiceClient(conn)
}

// An imported image stays shared and pinned when the kubelet pulls it again, and is used if no registry gives it.
func TestAnImportedImageIsPulledAgain(t *testing.T) {
	below := &runtimes{has: map[string]bool{"a.b/imported:1": true}, pinned: map[string]bool{"a.b/imported:1": true}}
	ctx, kubelet := below.kubelet(t)
	pull := func(image string) error {
		_, err := kubelet.PullImage(ctx, &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: image}})
		return err
	}
	for range 2 {
		if err := pull("a.b/imported:1"); err != nil || !below.has["a.b/imported:1"] || !below.pinned["a.b/imported:1"] {
			t.Errorf("%v, shared %v, pinned %v", err, below.has, below.pinned)
		}
		below.fails = true
	}
	if err := pull("a.b/other:1"); err == nil {
		t.Error("an image that is not here was pulled from nowhere")
	}
	below.has[Bundled[1]] = true // and not pinned: what is bundled is never pulled
	if err := pull(Bundled[1]); err != nil {
		t.Errorf("what is bundled was asked of a registry: %v", err)
	}
	below.pinned["a.b/imported:1"] = false
	if err := pull("a.b/imported:1"); err == nil {
		t.Error("an image that came from a registry is used when that refuses it")
	}
}

// A tenant neither finds nor replaces what the owner or another consumer has, but what is shared.
func TestTenantsHaveImagesOfTheirOwn(t *testing.T) {
	below := &runtimes{has: map[string]bool{"a.b/private:1": false, "a.b/shared:1": true, "a.b/lesson:1": false, "a.b/kept:1": false, Bundled[0]: false, Bundled[1]: false},
		given: map[string]string{"a.b/lesson:1": "kept+lab/db+lab/exam", "a.b/kept:1": "kept"}}
	ctx, kubelet := below.kubelet(t)
	of := func(consumer, image string) *runtime.ImageSpec {
		s := &runtime.ImageSpec{Image: image}
		if consumer != "" {
			s.Annotations = map[string]string{policy.OriginLabel: consumer}
		}
		return s
	}
	id := func(consumer, image string) string {
		t.Helper()
		got, err := kubelet.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: of(consumer, image)})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetImage().GetId()
	}
	if id("", "a.b/private:1") == "" || id("mallory", "a.b/private:1") != "" || id("mallory", "a.b/shared:1") != "a.b/shared:1" || id("mallory", Bundled[0]) != Bundled[0] || id("mallory", Bundled[1]) != Bundled[1] {
		t.Error("the owner's images: what is not shared is found, or what is shared is not")
	}
	for consumer, has := range map[string]bool{"db-ann": true, "web-ben": false, "mallory": false} {
		if id(consumer, "a.b/lesson:1") != "" != has || id(consumer, "a.b/kept:1") != "" {
			t.Errorf("the image of a course: %s has it: %t", consumer, !has)
		}
	}
	pull := func(in *runtime.PullImageRequest) {
		t.Helper()
		if _, err := kubelet.PullImage(ctx, in); err != nil {
			t.Fatal(err)
		}
	}
	was := maps.Clone(below.has)
	pull(&runtime.PullImageRequest{Image: of("mallory", "a.b/private:1"), Auth: &runtime.AuthConfig{ServerAddress: "a.b", IdentityToken: "token"}})
	for name := range was {
		if slices.Contains(below.pulled, name) {
			t.Errorf("%s was replaced", name)
		}
	}
	if a := below.auth; a.ServerAddress != "" || a.Username != tokenUser || a.Password != "token" {
		t.Errorf("login %+v", a)
	}
	if mine := id("mallory", "a.b/private:1"); !strings.HasPrefix(mine, Registry) {
		t.Errorf("what it has had fetched is %q", mine)
	}
	if id("alice", "a.b/private:1") != "" {
		t.Error("another consumer has what mallory had fetched")
	}
	// The sandbox tells whose pod it is, too.
	pull(&runtime.PullImageRequest{Image: of("", "a.b/x:1"), SandboxConfig: &runtime.PodSandboxConfig{Annotations: map[string]string{policy.OriginLabel: "mallory"}}})
	if last := below.pulled[len(below.pulled)-1]; !strings.HasPrefix(last, Registry) {
		t.Errorf("%s was fetched for a tenant", last)
	}
	pull(&runtime.PullImageRequest{Image: of("", "a.b/x:1")})
	if last := below.pulled[len(below.pulled)-1]; last != "a.b/x:1" {
		t.Errorf("%s was fetched for the owner", last)
	}
}
