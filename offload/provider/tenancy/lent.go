package tenancy

import (
	"bytes"
	"context"
	"slices"
	"strings"

	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// ownClass is the StorageClass that is lent without a label, ownStorage its entry in policies, with this cluster's own
// provisioner (appliance/addons/volumes): another program's class of that name is not lent by it.
const ownClass, ownStorage = "local-path", `'local-path': 'rivulet.dev/local-path'`

// keepBounds keeps the admission policies in force until ctx ends, with the RuntimeClasses and StorageClasses that the
// owner lends by policy.LentLabel. The policies have their names: no policy can ask whether one of several objects
// exists, and a class that is named in a claim need not exist. No consumer has a right before the classes are known.
func keepBounds(ctx context.Context, t *Tenancy) {
	factory := informers.NewSharedInformerFactoryWithOptions(t.client, 0, informers.WithTransform(watch.Unmanaged), watch.Labelled(policy.LentLabel))
	defer factory.Shutdown()
	t.runtimes, t.storages = factory.Node().V1().RuntimeClasses().Informer(), factory.Storage().V1().StorageClasses().Informer()
	for _, i := range []cache.SharedIndexInformer{t.runtimes, t.storages} {
		// It fails only on a stopped informer.
		_, _ = i.AddEventHandler(watch.Changes(t.policies.Poke))
	}
	factory.Start(ctx.Done())
	if cache.WaitForCacheSync(ctx.Done(), t.runtimes.HasSynced, t.storages.HasSynced) {
		_ = t.policies.Run(ctx) // ends with ctx
	}
}

// lending writes the names of lent RuntimeClasses into the list of a policy, and those of lent StorageClasses with their
// provisioners into the map of one.
func lending(manifest []byte, runtimes, storages []any) []byte {
	names := []string{"''"}
	for _, o := range runtimes {
		names = append(names, inCEL(o.(*nodev1.RuntimeClass).Name))
	}
	classes, own := []string{}, ownStorage
	for _, o := range storages {
		c := o.(*storagev1.StorageClass)
		classes = append(classes, inCEL(c.Name)+": "+inCEL(c.Provisioner))
		if c.Name == ownClass {
			own = ""
		}
	}
	if own != "" {
		classes = append(classes, own)
	}
	slices.Sort(names)
	slices.Sort(classes)
	manifest = bytes.ReplaceAll(manifest, []byte("{"+ownStorage+"}"), []byte("{"+strings.Join(classes, ", ")+"}"))
	return bytes.ReplaceAll(manifest, []byte("['', '']"), []byte("["+strings.Join(names, ", ")+"]"))
}

// inCEL is a literal of CEL for a double-quoted text of YAML.
func inCEL(text string) string {
	return "'" + strings.Map(func(r rune) rune {
		if r == '\'' || r == '"' || r == '\\' || r < ' ' {
			return -1
		}
		return r
	}, text) + "'"
}
