package tenancy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podmemory"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// memoryAnnotation on a twin is the memory in bytes that one pod in it may use: admission (pods.yaml) sets it as the
// limit of pods without a limit, or with a higher one.
const memoryAnnotation = "rivulet.dev/memory"

// memoryBound is the value of the annotation for a consumer with that part of the memory: three quarters, so that a pod
// that requests less than it uses leaves some to the node. Small differences are ignored, since each change is a write.
func memoryBound(have string, part int64) string {
	want := part / 4 * 3
	if n, err := strconv.ParseInt(have, 10, 64); err == nil && max(n-want, want-n) <= want/8 {
		return have
	}
	return strconv.FormatInt(want, 10)
}

// partOf is the memory part of a consumer, also before its first twin.
func (t *Tenancy) partOf(consumer peer.ID) int64 {
	room, known := t.room.Room(t.Shares())
	if !known {
		return 0 // no pod is admitted either
	}
	part := room.Parts(append(t.consumers(), consumer))[room.Account(consumer)]
	return memoryPart(room, consumer, amountsOf(part))
}

// memoryPart is the most memory that a consumer may use; part is its own.
func memoryPart(room offer.Room, consumer peer.ID, part amounts) (sum int64) {
	if _, member := room.Members[consumer]; !member {
		return part[corev1.ResourceMemory]
	}
	for _, p := range room.For(consumer, nil).Platforms {
		sum += amountsOf(p.Allocatable)[corev1.ResourceMemory]
	}
	return sum
}

// bindMemory writes the bound into a twin.
func (t *Tenancy) bindMemory(ctx context.Context, twin string, room offer.Room, parts map[peer.ID]amounts) error {
	ns, err := t.twins.Get(twin)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("tenancy: memory of twin %s: %w", twin, err)
	case ns.DeletionTimestamp != nil:
		return nil
	}
	have := ns.Annotations[memoryAnnotation]
	consumer := peer.ID(ns.Labels[policy.OriginLabel])
	want := memoryBound(have, memoryPart(room, consumer, parts[room.Account(consumer)]))
	if have == want {
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, memoryAnnotation, want)
	_, err = t.client.CoreV1().Namespaces().Patch(ctx, twin, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tenancy: memory of twin %s: %w", twin, err)
	}
	return nil
}

// PodMemory reads how much memory pods of this cluster's nodes use.
type PodMemory interface {
	// Read reads pods of one node; those that are not there are left out.
	Read(ctx context.Context, node string, q podmemory.Query) (podmemory.Usage, error)
}

const (
	// memoryLook is the interval in which the memory of tenants' pods is read, while there are any.
	memoryLook = time.Second
	// memoryFreed is how long a pod may take to end before its memory counts as used again.
	memoryFreed = 10 * time.Second
)

// reserve is the memory in bytes that stays free for the owner; below it, pods of tenants are evicted. It is a
// twentieth of the machine's, within bounds.
func reserve(machine int64) int64 { return min(max(machine/20, 64<<20), 512<<20) }

// keepMemory evicts pods of tenants that use, by limits above their requests, memory that is not lent, until ctx ends.
// The kubelet does not evict for memory, and the kernel would also choose pods of the owner. See overusers.
func (t *Tenancy) keepMemory(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-t.room.Synced():
	}
	changed, stop := t.room.Changed()
	defer stop()
	leaving := map[types.UID]time.Time{} // since when
	for {
		var again <-chan time.Time
		wake := changed // a pod of a tenant is a change
		if t.relieve(ctx, leaving) {
			again, wake = time.After(memoryLook), nil
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-wake:
		}
	}
}

// usage reads pods of all nodes. A node that does not answer counts as one without pods, until it does.
func usage(ctx context.Context, memory PodMemory, log *slog.Logger, pods map[types.UID]*corev1.Pod, held bool) (use map[types.UID]int64, short map[string]int64) {
	on := map[string]*podmemory.Query{}
	for uid, p := range pods {
		if on[p.Spec.NodeName] == nil {
			on[p.Spec.NodeName] = &podmemory.Query{Held: held}
		}
		on[p.Spec.NodeName].Pods = append(on[p.Spec.NodeName].Pods, uid)
	}
	use, short = map[types.UID]int64{}, map[string]int64{}
	var mu sync.Mutex
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, memoryLook)
	defer cancel()
	for node, q := range on {
		all.Go(func() {
			got, err := memory.Read(ctx, node, *q)
			if err != nil {
				log.Debug("the memory of a node's pods is not known", "node", node, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(use, got.Pods)
			if got.Machine > 0 {
				short[node] = reserve(got.Machine) - got.Available
			}
		})
	}
	all.Wait()
	return use, short
}

// tenantsOn are the unfinished pods of consumers that are on a node, as far as the Watcher keeps of them.
func tenantsOn(room *offer.Watcher) (pods []*corev1.Pod) {
	for _, obj := range room.Pods().GetStore().List() {
		p, ok := obj.(*corev1.Pod)
		if ok && p.Labels[policy.OriginLabel] != "" && p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods = append(pods, p)
		}
	}
	return pods
}

// relieve makes one pass, and reports whether there are pods of tenants.
func (t *Tenancy) relieve(ctx context.Context, leaving map[types.UID]time.Time) (tenants bool) {
	known := map[types.UID]*corev1.Pod{}
	room, ready := t.room.Room(t.Shares())
	ready = ready && room.Offer.Ready
	charged, lent, parts := map[bool]int64{}, map[bool]int64{}, map[peer.ID]int64{} // of virtual clusters, of peers; by consumer
	if ready {
		for id, part := range room.Parts(t.consumers()) {
			parts[id] = amountsOf(part)[corev1.ResourceMemory]
			lent[id == offer.Pool] += parts[id]
		}
	}
	for _, p := range tenantsOn(t.room) {
		known[p.UID] = p
	}
	tenants = len(known) > 0
	all, short := usage(ctx, t.PodMemory, t.Log, known, false)
	for uid, p := range known {
		n, there := all[uid]
		if !there {
			delete(known, uid)
		}
		charged[room.Account(peer.ID(p.Labels[policy.OriginLabel])) == offer.Pool] += n
	}
	for uid := range leaving {
		if known[uid] == nil {
			delete(leaving, uid)
		}
	}
	lacks := func(n int64) bool { return n > 0 }
	if !slices.ContainsFunc(slices.Collect(maps.Values(short)), lacks) && (!ready || charged[true] <= lent[true] && charged[false] <= lent[false]) {
		return tenants
	}
	held, short := usage(ctx, t.PodMemory, t.Log, known, true)
	var pods []heldBy
	for uid, n := range held { // the others have just ended
		p := known[uid]
		if since, asked := leaving[uid]; asked && now().Sub(since) < memoryFreed {
			short[p.Spec.NodeName] -= n
			continue
		}
		asked := offer.Requests(p)[corev1.ResourceMemory]
		one := heldBy{consumer: room.Account(peer.ID(p.Labels[policy.OriginLabel])), node: p.Spec.NodeName, uid: uid, held: n, requested: asked.Value()}
		pods = append(pods, one)
		if !ready { // what is lent is unknown
			parts[one.consumer] += n
		}
	}
	for _, one := range overusers(pods, parts, short) {
		p := known[one.uid]
		if err := t.evictForMemory(ctx, p, one, short[one.node] > 0); err != nil {
			if ctx.Err() == nil {
				t.Log.Warn("a pod that holds memory of others was not evicted yet", "pod", p.Namespace+"/"+p.Name, "err", err)
			}
			continue
		}
		leaving[one.uid] = now()
	}
	return tenants
}

// evictForMemory evicts the pod with the reason.
func (t *Tenancy) evictForMemory(ctx context.Context, p *corev1.Pod, one heldBy, short bool) error {
	why := "the pods of other clusters together hold more memory than is lent"
	if short {
		why = "the node is short of memory"
	}
	message := fmt.Sprintf("evicted: it held %d MiB of memory and asked for %d, and %s; raise its request to what it needs", one.held>>20, one.requested>>20, why)
	return evict(ctx, t.client, t.Log, p, message)
}
