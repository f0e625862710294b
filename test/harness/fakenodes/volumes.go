package fakenodes

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	storageutil "k8s.io/component-helpers/storage/volume"
)

// Provisioner stands in for the provisioner of local volumes on fake nodes, where a real one has no folder: it makes a
// PersistentVolume object for each claim whose pod the scheduler has placed on one of them, and deletes it when it is
// released. It reads claims and volumes, alone writes those volumes, and tries again what fails.
type Provisioner struct {
	client          kubernetes.Interface
	name            string // in StorageClasses
	nodes           []string
	claims, volumes cache.SharedIndexInformer
	queue           workqueue.TypedRateLimitingInterface[string]
}

// NewProvisioner is one for the nodes; name is that of the provisioner in StorageClasses.
func NewProvisioner(client kubernetes.Interface, name string, nodes ...Node) *Provisioner {
	p := &Provisioner{client: client, name: name,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, time.Second))}
	for _, n := range nodes {
		p.nodes = append(p.nodes, n.Name)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	p.claims, p.volumes = factory.Core().V1().PersistentVolumeClaims().Informer(), factory.Core().V1().PersistentVolumes().Informer()
	for _, i := range []cache.SharedIndexInformer{p.claims, p.volumes} {
		enqueue := func(o any) {
			if key, err := cache.MetaNamespaceKeyFunc(o); err == nil {
				p.queue.Add(key)
			}
		}
		// It fails only on an informer that has ended.
		_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) }})
	}
	return p
}

// Run blocks until ctx ends.
func (p *Provisioner) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { p.claims.RunWithContext(ctx) })
	all.Go(func() { p.volumes.RunWithContext(ctx) })
	all.Go(func() { work(ctx, p.queue, 4, p.sync) })
	<-ctx.Done()
	p.queue.ShutDown()
	all.Wait()
}

// sync is for a claim (namespace/name) or a volume (name).
func (p *Provisioner) sync(ctx context.Context, key string) (err error) {
	if strings.Contains(key, "/") {
		if o, there, _ := p.claims.GetStore().GetByKey(key); there {
			err = p.provision(ctx, o.(*corev1.PersistentVolumeClaim))
		}
	} else if o, there, _ := p.volumes.GetStore().GetByKey(key); there {
		err = p.release(ctx, o.(*corev1.PersistentVolume))
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// nowhere is where the folders of its volumes would be.
const nowhere = "/nowhere/"

func (p *Provisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	node := claim.Annotations[storageutil.AnnSelectedNode]
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || claim.Annotations[storageutil.AnnStorageProvisioner] != p.name || !slices.Contains(p.nodes, node) {
		return nil
	}
	_, err := p.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), Annotations: map[string]string{storageutil.AnnDynamicallyProvisioned: p.name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              storageutil.GetPersistentVolumeClaimClass(claim),
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: nowhere + claim.Namespace + "_" + claim.Name + "_pvc-" + string(claim.UID)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	return err
}

func (p *Provisioner) release(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Status.Phase != corev1.VolumeReleased || v.DeletionTimestamp != nil || v.Annotations[storageutil.AnnDynamicallyProvisioned] != p.name ||
		v.Spec.Local == nil || !strings.HasPrefix(v.Spec.Local.Path, nowhere) {
		return nil
	}
	return p.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
}
