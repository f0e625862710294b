package tenancy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// stoppedAnnotation on a twin names, with commas between them, claims whose pods are refused (pods.yaml).
const stoppedAnnotation = "rivulet.dev/stopped-claims"

const (
	// diskLook is the interval in which disks are read, while pods of tenants have claims there; diskStopped is that of
	// claims whose pods were ended.
	diskLook, diskStopped = time.Second, 10 * time.Second
	// DiskMeasure is how long a node may measure volumes; diskAnswer is how long it may take for the rest.
	DiskMeasure, diskAnswer = 20 * time.Second, 2 * time.Second
)

// Parts of a disk. Where less than one in diskReserve is free, pods end whose claims have more in them than they ask for;
// they may return above one in diskCalm. The kubelet evicts any pods below a twentieth. Below one in diskLast every pod of
// a tenant with a claim there ends: the rest is for the datastore.
const diskCalm, diskReserve, diskLast = 7, 10, 40

// beyond reports whether a volume has more in it than a claim for that many bytes allows: a tenth and 16 MiB more than it
// asks for, which the file system may need itself.
func beyond(v filetree.Taken, asked int64) bool {
	return v.Unmeasured || v.Bytes > asked+asked/10+16<<20 || v.Files > filetree.Entries(asked)
}

// disks ends pods of tenants that fill a disk of this cluster by their claims: a volume is a folder, which only the disk
// bounds. What they wrote stays, so their claims get no new pods until the claim asks for it, or the disk has space. It
// reads pods, claims, volumes and disks; it alone writes stoppedAnnotation and, by evict, these deletions. Restart: the
// state is in the annotations. Failure: a node that does not answer is asked again; what was stopped there stays so.
type disks struct {
	client  kubernetes.Interface
	room    *offer.Watcher
	twins   corelisters.NamespaceLister
	synced  func() bool
	volumes Volumes
	log     *slog.Logger
}

// tenantClaim is a claim in a twin, with its unfinished pods.
type tenantClaim struct {
	types.NamespacedName
	node    string
	pods    []*corev1.Pod
	stopped bool
	// From here on it is known after find only.
	volume    *corev1.PersistentVolume
	requested int64
}

func (d *disks) keep(ctx context.Context) {
	changed, stop := d.room.Changed()
	defer stop()
	for {
		var again <-chan time.Time
		wake := changed
		if next := d.pass(ctx); next > 0 {
			again = time.After(next)
			if next != diskStopped {
				wake = nil
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-wake: // a pod of a tenant is a change
		}
	}
}

// pass looks once at each disk with claims of tenants, and returns when to look again; 0 is after a change.
func (d *disks) pass(ctx context.Context) (next time.Duration) {
	if !d.synced() {
		return diskLook
	}
	all := map[types.NamespacedName]*tenantClaim{}
	claim := func(twin, name string) *tenantClaim {
		key := types.NamespacedName{Namespace: twin, Name: name}
		if all[key] == nil {
			all[key] = &tenantClaim{NamespacedName: key}
		}
		return all[key]
	}
	twins, _ := d.twins.List(labels.Everything()) // a cache cannot fail
	for _, ns := range twins {
		for name := range strings.SplitSeq(ns.Annotations[stoppedAnnotation], ",") {
			if name != "" {
				claim(ns.Name, name).stopped = true
				next = diskStopped
			}
		}
	}
	nodes := map[string]map[types.NamespacedName]*tenantClaim{}
	on := func(node string, c *tenantClaim) {
		if c.node != "" {
			return // pods on several nodes use it: it is no folder of one
		}
		c.node = node
		if nodes[node] == nil {
			nodes[node] = map[types.NamespacedName]*tenantClaim{}
		}
		nodes[node][c.NamespacedName] = c
	}
	for _, p := range tenantsOn(d.room) {
		for _, v := range p.Spec.Volumes {
			c := claim(p.Namespace, v.PersistentVolumeClaim.ClaimName)
			c.pods = append(c.pods, p)
			on(p.Spec.NodeName, c)
			next = diskLook
		}
	}
	begun := now()
	free := map[types.NamespacedName]bool{} // stopped ones that need not be any more
	for key, c := range all {
		if !c.stopped || len(c.pods) > 0 {
			continue
		}
		there, err := d.find(ctx, c)
		switch {
		case err != nil:
			d.log.Debug("a stopped claim is not known", "claim", key, "err", err)
		case !there:
			free[key] = true
		default:
			on(d.volumes.NodeOf(c.volume), c)
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop := map[types.NamespacedName]string{} // and why
	for node, claims := range nodes {
		wg.Go(func() {
			end, release, err := d.check(ctx, node, claims)
			if err != nil && ctx.Err() == nil {
				d.log.Debug("the disk of a node is not known", "node", node, "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(stop, end)
			for _, key := range release {
				free[key] = true
			}
		})
	}
	wg.Wait()
	if len(stop)+len(free) > 0 {
		d.apply(ctx, all, stop, free)
	}
	if next > 0 { // half of the time at most is spent on measuring
		next = max(next, now().Sub(begun))
	}
	return next
}

// check reads the disk of a node, and measures the claims there if it has to be. It returns those whose pods have to end,
// with the reason, and stopped ones that need not be any more.
func (d *disks) check(ctx context.Context, node string, claims map[types.NamespacedName]*tenantClaim) (stop map[types.NamespacedName]string, release []types.NamespacedName, err error) {
	stopped := slices.ContainsFunc(slices.Collect(maps.Values(claims)), func(c *tenantClaim) bool { return c.stopped })
	within, cancel := context.WithTimeout(ctx, diskAnswer)
	disk, err := d.volumes.Usage(within, node, nil)
	cancel()
	if err != nil || !disk.Lacks(diskReserve) && !stopped {
		return nil, nil, err
	}
	calm := !disk.Lacks(diskCalm)
	var of []*corev1.PersistentVolume
	for key, c := range claims {
		there := c.volume != nil
		if !there && !calm {
			if there, err = d.find(ctx, c); err != nil {
				return nil, nil, err
			}
		}
		if there && !calm {
			of = append(of, c.volume)
		} else if c.stopped {
			release = append(release, key)
		}
	}
	if len(of) == 0 {
		return nil, release, nil
	}
	within, cancel = context.WithTimeout(ctx, DiskMeasure+diskAnswer)
	defer cancel()
	if disk, err = d.volumes.Usage(within, node, of); err != nil {
		return nil, nil, err
	}
	stop = map[types.NamespacedName]string{}
	short, last := disk.Lacks(diskReserve), disk.Lacks(diskLast)
	for key, c := range claims {
		if c.volume == nil {
			continue
		}
		taken, measured := disk.Volumes[c.volume.Name]
		over := measured && beyond(taken, c.requested)
		switch {
		case over && (short || c.stopped):
			stop[key] = fmt.Sprintf("claim %s has %d MiB in %d files, and asks for %d MiB, and the disk is nearly full; raise requests.storage of the claim", key.Name, taken.Bytes>>20, taken.Files, c.requested>>20)
		case last:
			stop[key] = fmt.Sprintf("the disk of claim %s is full, and what is left is for that cluster itself; ask its owner to free space", key.Name)
		case c.stopped && measured:
			release = append(release, key)
		}
	}
	return stop, release, nil
}

// find gets the volume of a claim, and what it asks for; false if it has none here.
func (d *disks) find(ctx context.Context, c *tenantClaim) (bool, error) {
	claim, err := d.client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	v, err := d.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && d.volumes.NodeOf(v) == "" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.volume, c.requested = v, claim.Spec.Resources.Requests.Storage().Value()
	return true, nil
}

// apply first has the claims' new pods refused, and then ends those that are there.
func (d *disks) apply(ctx context.Context, all map[types.NamespacedName]*tenantClaim, stop map[types.NamespacedName]string, free map[types.NamespacedName]bool) {
	changed := map[string]map[string]bool{} // by twin: the claims, true for those to stop
	for key, c := range all {
		if _, now := stop[key]; now && !c.stopped || free[key] {
			if changed[key.Namespace] == nil {
				changed[key.Namespace] = map[string]bool{}
			}
			changed[key.Namespace][key.Name] = now
		}
	}
	for twin, claims := range changed {
		if err := d.mark(ctx, twin, claims); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			d.log.Warn("what is stopped for a full disk is not written yet; it is tried again", "twin", twin, "err", err)
		}
	}
	for key, why := range stop {
		for _, p := range all[key].pods {
			if grace := p.DeletionGracePeriodSeconds; p.DeletionTimestamp != nil && grace != nil && *grace <= evictedGrace {
				continue
			}
			if err := evict(ctx, d.client, d.log, p, "evicted: "+why); err != nil && ctx.Err() == nil {
				d.log.Warn("a pod that fills the disk was not evicted yet", "pod", p.Namespace+"/"+p.Name, "err", err)
			}
		}
	}
}

// mark writes changes of stoppedAnnotation, on what the API server has now: a cache may not have the last change yet.
func (d *disks) mark(ctx context.Context, twin string, changed map[string]bool) error {
	ns, err := d.client.CoreV1().Namespaces().Get(ctx, twin, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(ns.Annotations[stoppedAnnotation], ",") {
		if _, known := changed[name]; !known {
			changed[name] = name != ""
		}
	}
	maps.DeleteFunc(changed, func(_ string, stopped bool) bool { return !stopped })
	value := []byte("null")
	if len(changed) > 0 {
		value = strconv.AppendQuote(nil, strings.Join(slices.Sorted(maps.Keys(changed)), ","))
	}
	_, err = d.client.CoreV1().Namespaces().Patch(ctx, twin, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, stoppedAnnotation, value),
		metav1.PatchOptions{FieldManager: policy.FieldManager})
	return err
}
