package gossip

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// group is three members of a database, as its users write it, one on each device, each with a claim.
// Its arguments are its name, command and readiness probe.
const group = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%[1]q,"labels":{"rivulet.dev/offload":"any"}}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q,"namespace":%[1]q},"spec":{"clusterIP":"None","publishNotReadyAddresses":true,"selector":{"app":%[1]q},"ports":[{"port":1}]}},
{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":%[1]q,"namespace":%[1]q},"spec":{"serviceName":%[1]q,"replicas":3,"podManagementPolicy":"Parallel",
 "selector":{"matchLabels":{"app":%[1]q}},
 "volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"64Mi"}}}}],
 "template":{"metadata":{"labels":{"app":%[1]q}},"spec":{"terminationGracePeriodSeconds":5,
  "topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":%[1]q}}}],
  "securityContext":{"runAsUser":65534,"runAsGroup":65534,"fsGroup":65534},
  "volumes":[{"name":"tmp","emptyDir":{}},{"name":"run","emptyDir":{}}],
  "containers":[{"name":"db","image":"rivulet.dev/databases:1","command":["/bin/sh","-ec",%[2]q],
   "env":[{"name":"NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"PATH","value":"/usr/lib/postgresql/15/bin:/usr/bin:/bin"},{"name":"ETCDCTL_API","value":"3"}],
   "volumeMounts":[{"name":"data","mountPath":"/data"},{"name":"tmp","mountPath":"/tmp"},{"name":"run","mountPath":"/var/run/postgresql"}],
   "resources":{"requests":{"cpu":"10m","memory":"64Mi"}},
   "readinessProbe":{"exec":{"command":["/bin/sh","-c",%[3]q]},"periodSeconds":2,"timeoutSeconds":10,"failureThreshold":60}}]}}}}]}`

const etcd = `me=$NAME.etcd.etcd.svc.cluster.local
exec etcd --name $NAME --data-dir /data/etcd --initial-cluster-state new --listen-peer-urls http://0.0.0.0:2380 --listen-client-urls http://0.0.0.0:2379 \
 --initial-advertise-peer-urls http://$me:2380 --advertise-client-urls http://$me:2379 \
 --initial-cluster etcd-0=http://etcd-0.etcd.etcd.svc.cluster.local:2380,etcd-1=http://etcd-1.etcd.etcd.svc.cluster.local:2380,etcd-2=http://etcd-2.etcd.etcd.svc.cluster.local:2380`

// The first is the one that is written to; the others copy it and follow.
const postgres = `if [ $NAME = postgres-0 ]; then
 if [ ! -e /data/pg/PG_VERSION ]; then initdb -D /data/pg -A trust --no-locale -E UTF8; echo "host all all all trust
host replication all all trust" >> /data/pg/pg_hba.conf; fi
else
 if [ ! -e /data/pg/PG_VERSION ]; then rm -rf /data/pg; until pg_basebackup -h postgres-0.postgres -D /data/pg -R; do rm -rf /data/pg; sleep 1; done; fi
fi
chmod 700 /data/pg
exec postgres -D /data/pg -c listen_addresses='*' -c jit=off`

// Databases whose members are on home and two providers form, go on while the device of one member is cut off, have it
// back with all that was written meanwhile, and take back a member that was made anew, with its data.
func TestDatabasesOverClusters(t *testing.T) {
	for _, db := range []struct {
		name, command, ready string
		write, read          func(key string) []string // what is run in a member; read prints the key if it is there
	}{
		{"etcd", etcd, "etcdctl endpoint health",
			func(key string) []string { return []string{"etcdctl", "put", key, key} },
			func(key string) []string {
				return []string{"etcdctl", "get", "--consistency=s", "--print-value-only", key}
			}},
		{"postgres", postgres, "pg_isready -h 127.0.0.1",
			func(key string) []string {
				return []string{"psql", "-h", "127.0.0.1", "-U", "nobody", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", "create table if not exists kept (key text); insert into kept values ('" + key + "')"}
			},
			func(key string) []string {
				return []string{"psql", "-h", "127.0.0.1", "-U", "nobody", "-d", "postgres", "-At", "-c", "select key from kept where key = '" + key + "'"}
			}},
	} {
		t.Run(db.name, func(t *testing.T) {
			ctx := suite.Bounded(t, 8*time.Minute)
			a := suite.Devices["a"]
			labtest.CleanUp(t, func(ctx context.Context) {
				_, _ = a.Kubectl(ctx, "delete", "namespace", db.name, "--ignore-not-found", "--wait=false")
			})
			labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", fmt.Sprintf(group, db.name, db.command, db.ready))
			pods := func() (at [3]corev1.Pod, err error) {
				out, err := a.Kubectl(ctx, "-n", db.name, "get", "pods", "-o", "json")
				var list corev1.PodList
				if err == nil {
					err = json.Unmarshal([]byte(out), &list)
				}
				for _, p := range list.Items {
					var i int
					if _, e := fmt.Sscanf(p.Name, db.name+"-%d", &i); e == nil && i < len(at) {
						at[i] = p
					}
				}
				return at, err
			}
			run := func(member int, command []string) (string, error) {
				return a.Kubectl(ctx, append([]string{"-n", db.name, "exec", fmt.Sprint(db.name, "-", member), "--"}, command...)...)
			}
			write := func(key string) {
				t.Helper()
				await.NoError(t, ctx, time.Minute, key+" is written", func() error { _, err := run(0, db.write(key)); return err })
			}
			have := func(what string, keys ...string) {
				t.Helper()
				await.NoError(t, ctx, 2*time.Minute, what, func() error {
					for member := range 3 {
						for _, key := range keys {
							if out, err := run(member, db.read(key)); err != nil || strings.TrimSpace(out) != key {
								return fmt.Errorf("%s-%d has %q of %s: %w", db.name, member, out, key, err)
							}
						}
					}
					return nil
				})
			}
			write("first")
			have("all members have what was written", "first")
			at, err := pods()
			if err != nil {
				t.Fatal(err)
			}
			nodes := map[string]int{}
			for i, p := range at {
				nodes[p.Spec.NodeName] = i
			}
			if len(nodes) != 3 {
				t.Fatalf("the members are on %v, want one on each device", nodes)
			}

			lost, device := 1, at[1].Spec.NodeName // the first is the one that PostgreSQL writes to
			for device == "a" {
				lost, device = lost+1, at[lost+1].Spec.NodeName
			}
			if err := suite.Lab.Cut(device, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := suite.Lab.Heal(); err != nil {
					t.Error(err)
				}
			})
			write("meanwhile")
			if err := suite.Lab.Heal(); err != nil {
				t.Fatal(err)
			}
			have("the member that was cut off has it", "first", "meanwhile")
			if now, err := pods(); err != nil || now[lost].UID != at[lost].UID {
				t.Errorf("the member that was cut off is another: %v", err)
			}

			labtest.Kubectl(t, ctx, a, "-n", db.name, "delete", "pod", at[lost].Name)
			write("last")
			have("the member that was made anew has all", "first", "meanwhile", "last")
			now, err := pods()
			if err != nil || now[lost].UID == at[lost].UID || now[lost].Spec.NodeName != device {
				t.Errorf("%s is on %s, want another where its data are, %s (%v)", at[lost].Name, now[lost].Spec.NodeName, device, err)
			}
		})
	}
}
