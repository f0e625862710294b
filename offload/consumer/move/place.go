package move

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/panics"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/policy"
)

// Carrier is a target that sends and receives the files of claims in its twins. Namespaces are those of home, claims
// those of the twin.
type Carrier interface {
	VolumeTotal(ctx context.Context, namespace, claim string) (filetree.Total, error)
	VolumeSum(ctx context.Context, namespace, claim string) (filetree.Sum, error)
	VolumeRead(ctx context.Context, namespace, claim string) (io.ReadCloser, error)
	VolumeWrite(ctx context.Context, namespace, claim string, size int64, files io.Reader) (filetree.Sum, error)
}

// end is one side of a move.
type end struct {
	node  func() string
	ready func() bool // nil: always
	// hold keeps a source from pods until release; nil: each of the next three does that. held ends when it is taken away.
	hold func(ctx context.Context) (held context.Context, release func(), err error)
	// total, sum and read are of a source.
	total func(ctx context.Context) (filetree.Total, error)
	sum   func(ctx context.Context) (filetree.Sum, error)
	read  func(ctx context.Context) (io.ReadCloser, error)
	// prepare makes the empty destination of write; write returns what is there then; discard removes it.
	prepare func(ctx context.Context) error
	write   func(ctx context.Context, size int64, files io.Reader) (filetree.Sum, error)
	discard func(ctx context.Context) error
	// volume is home's object for what was written.
	volume func() *corev1.PersistentVolume
}

// source is the place of a volume's data.
func (m *Mover) source(v *corev1.PersistentVolume) (*end, error) {
	if v.Labels[volume.AwayLabel] == "" {
		files, err := m.cfg.Local.Files(v)
		if err != nil {
			return nil, err
		}
		node := Home
		if on := volume.Node(v); on != m.cfg.Local.Node() {
			node = on // another one of this cluster
		}
		return &end{
			node: func() string { return node },
			hold: func(ctx context.Context) (held context.Context, release func(), err error) {
				held, files, release, err = m.cfg.Local.Hold(ctx, v)
				return held, release, err
			},
			total: func(ctx context.Context) (filetree.Total, error) { return files.Measure(ctx) },
			sum:   func(ctx context.Context) (filetree.Sum, error) { return files.SumUp(ctx) },
			read: func(ctx context.Context) (io.ReadCloser, error) {
				r, w := io.Pipe()
				go func() { w.CloseWithError(panics.Call(func() error { return files.Pack(ctx, w) })) }()
				return r, nil
			},
		}, nil
	}
	p, carrier, err := m.carrier(volume.Node(v))
	if err != nil {
		return nil, err
	}
	if v.Spec.ClaimRef == nil {
		return nil, fmt.Errorf("volume %s belongs to no claim", v.Name)
	}
	namespace, claim := v.Spec.ClaimRef.Namespace, v.Annotations[volume.ClaimAnnotation]
	return &end{
		node: func() string { return p.Node }, ready: p.Up,
		total: func(ctx context.Context) (filetree.Total, error) { return carrier.VolumeTotal(ctx, namespace, claim) },
		sum:   func(ctx context.Context) (filetree.Sum, error) { return carrier.VolumeSum(ctx, namespace, claim) },
		read:  func(ctx context.Context) (io.ReadCloser, error) { return carrier.VolumeRead(ctx, namespace, claim) },
	}, nil
}

func (m *Mover) carrier(node string) (*volume.Place, Carrier, error) {
	p := m.cfg.Place(node)
	if p == nil {
		return nil, nil, fmt.Errorf("there is no virtual node %s; write home or a name that rivulet peers shows", node)
	}
	carrier, ok := p.Target.(Carrier)
	if !ok {
		return nil, nil, fmt.Errorf("%s is no Rivulet cluster and carries no volumes; move the data in a pod", node)
	}
	return p, carrier, nil
}

// destination is the intended place of the data.
func (m *Mover) destination(n note) (*end, error) {
	if n.To == Home {
		return m.here(n), nil
	}
	p, carrier, err := m.carrier(n.To)
	if err != nil {
		return nil, err
	}
	if !p.Offloaded(n.Namespace) {
		return nil, fmt.Errorf("namespace %s is not offloaded to %s, so no pod could use the data there; run rivulet offload %s first", n.Namespace, n.To, n.Namespace)
	}
	away := volume.AwayClaim(n.Was, n.Volume, m.cfg.Cluster)
	return &end{
		node: func() string { return p.Node }, ready: p.Up,
		prepare: func(ctx context.Context) error {
			twin, err := p.Target.Namespace(ctx, n.Namespace)
			if err == nil {
				err = volume.Stamp(ctx, m.cfg.Home, away)
			}
			if err != nil {
				return err
			}
			_, err = p.Target.Client().CoreV1().PersistentVolumeClaims(twin).Create(ctx, away, metav1.CreateOptions{FieldManager: policy.FieldManager})
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				return final{fmt.Errorf("%s refuses the volume: %w", n.To, err)}
			}
			if apierrors.IsAlreadyExists(err) {
				return nil // of an earlier attempt: its name is the new volume's
			}
			return err
		},
		write: func(ctx context.Context, size int64, files io.Reader) (filetree.Sum, error) {
			return carrier.VolumeWrite(ctx, n.Namespace, away.Name, size, files)
		},
		discard: func(ctx context.Context) error {
			twins, err := p.Target.Twins(ctx)
			if err != nil || twins[n.Namespace] == "" {
				return err
			}
			err = p.Target.Client().CoreV1().PersistentVolumeClaims(twins[n.Namespace]).Delete(ctx, away.Name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		},
		volume: func() *corev1.PersistentVolume { return volume.Volume(n.Was, nil, n.Volume, p.Node, p.Target.ID()) },
	}, nil
}

// here is this device as the destination.
func (m *Mover) here(n note) *end {
	dir, bounds := "", filetree.Bounds{}
	return &end{
		node: func() string { return Home },
		prepare: func(context.Context) (err error) {
			if dir, err = m.cfg.Local.Fresh(n.Namespace, n.Claim, n.Volume); err == nil {
				bounds, err = filetree.BoundsOf(dir, n.Was.Spec.Resources.Requests.Storage().Value())
			}
			return err
		},
		write: func(ctx context.Context, size int64, files io.Reader) (filetree.Sum, error) {
			err := filetree.Fits(dir, size)
			if err == nil {
				err = filetree.Unpack(ctx, dir, bounds, files)
			}
			if err != nil {
				return filetree.Sum{}, err
			}
			return filetree.SumUp(ctx, dir, bounds)
		},
		discard: func(context.Context) error { return m.cfg.Local.Discard(n.Namespace, n.Claim, n.Volume) },
		volume:  func() *corev1.PersistentVolume { return m.cfg.Local.Volume(n.Was, nil, n.Volume) },
	}
}

// final is an error that a retry would repeat.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// inUseBy reports whether an error says that a pod has the volume of a source, which is there then.
func inUseBy(err error) bool {
	var said *rpc.Error
	return errors.Is(err, filetree.ErrInUse) || errors.As(err, &said) && said.Code == "in-use"
}

// passing are the temporary refusals of a peer.
var passing = map[string]bool{"too-many-requests": true, "provider-unavailable": true, "quota-pending": true, "rights-pending": true, "bounds-pending": true, "terminating": true}

// isFinal reports whether a retry is useless.
func isFinal(err error) bool {
	var said *rpc.Error
	if errors.As(err, &said) {
		return !passing[said.Code]
	}
	return errors.As(err, new(final)) || errors.Is(err, filetree.ErrNoRoom) || errors.Is(err, filetree.ErrTooLarge)
}
