package vcluster

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/engine/controlplane/pods"
	"rivulet/appliance/state/archive"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/policy"
)

// The data of claims are stored by the host. A snapshot reads and writes them through the routes of the virtual
// cluster, with its rights only, so that a forged snapshot reaches no data of others.
const (
	claimsMember = "claims.json"
	claimsPrefix = "claims/"
	maxClaims    = 1000
	// chunk is the size of one member of a claim's data, bytes: the total is not known in advance.
	chunk = 4 << 20
	// claimPatience is how long a host may take until it accepts a new virtual cluster.
	claimPatience = time.Minute
)

// Claim is a claim in a snapshot.
type Claim struct {
	Namespace string                              `json:"namespace"`
	Claim     string                              `json:"claim"`
	Name      string                              `json:"name"`   // of the claim at the host
	Volume    string                              `json:"volume"` // inside the virtual cluster
	Modes     []corev1.PersistentVolumeAccessMode `json:"modes"`
	Requests  corev1.ResourceList                 `json:"requests"`
	// Data reports whether its data, Bytes of them, are in the snapshot.
	Data  bool  `json:"data"`
	Bytes int64 `json:"bytes"`
}

func (c Claim) String() string { return c.Namespace + "/" + c.Claim }

func (c Claim) check() error {
	for _, name := range []string{c.Namespace, c.Claim, c.Name, c.Volume} {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return unusable("%.60q in its list of claims is no name", name)
		}
	}
	return nil
}

// storage is the part of the host's API that claims need.
type storage interface {
	Namespace(ctx context.Context, home string) (string, error)
	Twins(ctx context.Context) (map[string]string, error)
	Client() kubernetes.Interface
	VolumeTotal(ctx context.Context, home, claim string) (filetree.Total, error)
	VolumeRead(ctx context.Context, home, claim string) (io.ReadCloser, error)
	VolumeWrite(ctx context.Context, home, claim string, size int64, files io.Reader) (filetree.Sum, error)
}

// asItself calls do with the virtual cluster's access to the host, whether its control plane runs or not.
func (c *cluster) asItself(do func(storage) error) error {
	path := filepath.Join(c.dir(), "own.sock")
	_ = os.Remove(path) // left by a killed supervisor
	l, err := net.Listen("unix", path)
	if err != nil {
		return diskErr(err)
	}
	srv := c.hostServer()
	go func() { _ = srv.Serve(l) }() // it ends with Close
	defer srv.Close()
	spec := pods.Spec(c.k.cfg.Pods, netip.AddrPort{}, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	t, err := spec.New(spec.Name, c.k.cfg.Log)
	if err != nil {
		return err
	}
	if closer, ok := t.(interface{ Close() }); ok {
		defer closer.Close()
	}
	return do(t.(storage))
}

// claims lists the claims of the virtual cluster at the host.
func claims(ctx context.Context, s storage, data bool) (out []Claim, err error) {
	twins, err := s.Twins(ctx)
	if err != nil {
		return nil, err
	}
	for home, twin := range twins {
		list, err := s.Client().CoreV1().PersistentVolumeClaims(twin).List(ctx, metav1.ListOptions{LabelSelector: volume.VolumeLabel})
		if err != nil {
			return nil, fmt.Errorf("claims of namespace %s: %w; see: rivulet status", home, err)
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil {
				continue
			}
			c := Claim{Namespace: home, Claim: p.Annotations[volume.HomeClaimAnnotation], Name: p.Name, Volume: p.Labels[volume.VolumeLabel],
				Modes: p.Spec.AccessModes, Requests: p.Spec.Resources.Requests, Data: data && p.Spec.VolumeName != ""}
			if c.Data {
				total, err := s.VolumeTotal(ctx, home, p.Name) // refused while a pod uses it
				if err != nil {
					return nil, fmt.Errorf("claim %s: %w; or leave the data of claims out: --without-data", c, err)
				}
				c.Bytes = total.Bytes
			}
			out = append(out, c)
		}
	}
	if len(out) > maxClaims {
		return nil, fmt.Errorf("there are %d claims, a snapshot has up to %d; delete some", len(out), maxClaims)
	}
	return out, nil
}

// writeClaims adds the data of claims to a snapshot.
func writeClaims(ctx context.Context, s storage, w *archive.Writer, all []Claim) error {
	buf := make([]byte, chunk)
	for i, c := range all {
		if !c.Data {
			continue
		}
		files, err := s.VolumeRead(ctx, c.Namespace, c.Name)
		if err != nil {
			return fmt.Errorf("claim %s: %w", c, err)
		}
		for n := 0; err == nil; n++ {
			var got int
			if got, err = io.ReadFull(files, buf); got > 0 {
				if werr := w.Bytes(fmt.Sprintf("%s%d/%08d", claimsPrefix, i, n), buf[:got]); werr != nil {
					err = werr
				}
			}
		}
		files.Close()
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("claim %s: %w", c, err)
		}
	}
	return nil
}

// claimsList reads the member with the list.
func (s *stager) claimsList(content io.Reader) error {
	if err := json.NewDecoder(io.LimitReader(content, maxManifest*maxClaims/100)).Decode(&s.claims); err != nil || len(s.claims) > maxClaims {
		return unusable("its list of claims cannot be read (%v); take another copy of the file", err)
	}
	for _, c := range s.claims {
		if err := c.check(); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(s.claims)
	if err != nil {
		return err
	}
	return diskErr(os.WriteFile(filepath.Join(s.dir, claimsMember), raw, 0o600))
}

// claimData reads one member of a claim's data; they arrive in order.
func (s *stager) claimData(h *tar.Header, content io.Reader) error {
	var i, n int
	if got, err := fmt.Sscanf(strings.TrimPrefix(h.Name, claimsPrefix), "%d/%d", &i, &n); err != nil || got != 2 ||
		h.Name != fmt.Sprintf("%s%d/%08d", claimsPrefix, i, n) || i < 0 || i >= len(s.claims) || !s.claims[i].Data || n != s.chunks[i] {
		return unusable("%.60q has no place in it; take another copy of the file", h.Name)
	}
	if s.chunks == nil {
		s.chunks = map[int]int{}
	}
	s.chunks[i]++
	f, err := os.OpenFile(claimFile(s.dir, i), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return diskErr(err)
	}
	_, err = io.Copy(f, content)
	return diskErr(errors.Join(err, f.Close()))
}

func claimFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("claim-%d", i)) }

// bring creates the claims of a snapshot at the host, with their data, before the first start of the control plane.
func (c *cluster) bring(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join(c.dir(), claimsMember))
	if err != nil {
		return diskErr(err)
	}
	var all []Claim
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	err = c.asItself(func(s storage) error {
		for i, claim := range all {
			if err := c.bringOne(ctx, s, claim, claimFile(c.dir(), i)); err != nil {
				return fmt.Errorf("claim %s: %w; nothing of the snapshot is left here", claim, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return diskErr(os.Remove(filepath.Join(c.dir(), claimsMember)))
}

func (c *cluster) bringOne(ctx context.Context, s storage, claim Claim, file string) error {
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Name,
			Labels:      map[string]string{policy.OriginLabel: string(c.record().ID), volume.VolumeLabel: claim.Volume},
			Annotations: map[string]string{policy.HomeNamespaceAnnotation: claim.Namespace, volume.HomeClaimAnnotation: claim.Claim}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: claim.Modes, Resources: corev1.VolumeResourceRequirements{Requests: claim.Requests}},
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, claimPatience, true, func(ctx context.Context) (bool, error) {
		twin, err := s.Namespace(ctx, claim.Namespace)
		if err == nil {
			_, err = s.Client().CoreV1().PersistentVolumeClaims(twin).Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
		}
		last = err
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
	if err != nil {
		return errors.Join(last, err)
	}
	if !claim.Data {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return diskErr(err)
	}
	defer f.Close()
	if _, err := s.VolumeWrite(ctx, claim.Namespace, claim.Name, claim.Bytes, f); err != nil {
		return err
	}
	return diskErr(os.Remove(file))
}
