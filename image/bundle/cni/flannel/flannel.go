// Package flannel is the CNI plugin "flannel": it turns the lease that flannel wrote for this node into a configuration
// of the bridge and host-local plugins, with an MTU that fits the node's links (upstream uses that of lo). It reads the
// lease and the links, and alone writes the delegated configuration of each container
// (/var/lib/cni/flannel/<container>). Restart: no other state. Failure: without a lease, or if the supervisor refuses a
// pod (package podgate), the pod stays in ContainerCreating with an event.
package flannel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/utils/buildversion"

	"rivulet/offload/nodeagent/podgate"
	"rivulet/offload/nodeagent/podnet"
)

// pluginNotAvailable is the code of the CNI specification for "cannot serve ADD now".
const pluginNotAvailable uint = 50

func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, Status: status},
		version.All, buildversion.BuildString("flannel"))
}

func add(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	lease, err := awaitLease(conf.SubnetFile, conf.patience())
	if err != nil {
		return err
	}
	if err := lease.apart(conf.bridge()); err != nil {
		return err
	}
	links, err := linkMTU(conf.bridge())
	if err != nil {
		return err
	}
	delegated, plugin, err := conf.delegated(lease, links)
	if err != nil {
		return err
	}
	// The state is written first, so that a partial ADD can be deleted.
	if err := saveState(conf.StateDir, args.ContainerID, delegated); err != nil {
		return err
	}
	result, err := invoke.DelegateAdd(context.Background(), plugin, delegated, nil)
	if err != nil {
		return fmt.Errorf("flannel: %s: %w", plugin, err)
	}
	if err := admitted(args, result); err != nil {
		// The runtime calls DEL as well; deleting here removes the pod from the bridge at once.
		return errors.Join(fmt.Errorf("flannel: %w", err), invoke.DelegateDel(context.Background(), plugin, delegated, nil))
	}
	return result.Print()
}

// patience is how long a pod waits for a supervisor that is starting, or for its isolation rules. The kubelet tries
// again afterwards.
const patience = 20 * time.Second

// admitted queries the supervisor whether the pod may have its network: a pod of another cluster has to be isolated
// first. Without a Kubernetes name it belongs to no cluster, and only root can create it.
func admitted(args *skel.CmdArgs, result types.Result) error {
	named := map[string]string{}
	for pair := range strings.SplitSeq(args.Args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		named[key] = value
	}
	if named["K8S_POD_NAMESPACE"] == "" {
		return nil
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	pod, ok := podnet.Made(named, text)
	if !ok {
		return fmt.Errorf("the network of the pod has no address or no interface: %s", text)
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	return podgate.Request(ctx, cmp.Or(os.Getenv(podgate.Env), podgate.DefaultSocket), pod)
}

func check(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	delegated, err := loadState(conf.StateDir, args.ContainerID)
	if err != nil {
		return fmt.Errorf("flannel: nothing is known of container %s: delete the pod: %w", args.ContainerID, err)
	}
	delegated, plugin, err := withPrevResult(delegated, conf.PrevResult)
	if err != nil {
		return err
	}
	return invoke.DelegateCheck(context.Background(), plugin, delegated, nil)
}

// del releases what add allocated. Without state it uses the current lease; without either there is nothing to release.
func del(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	delegated, err := loadState(conf.StateDir, args.ContainerID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		lease, err := readLease(conf.SubnetFile)
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if delegated, _, err = conf.delegated(lease, smallestPodMTU); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	delegated, plugin, err := withPrevResult(delegated, conf.PrevResult)
	if err != nil {
		return err
	}
	if err := invoke.DelegateDel(context.Background(), plugin, delegated, nil); err != nil {
		return fmt.Errorf("flannel: %s: %w", plugin, err)
	}
	return removeState(conf.StateDir, args.ContainerID)
}

func status(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if _, err := readLease(conf.SubnetFile); err != nil {
		return types.NewError(pluginNotAvailable, "flannel has no lease for this node yet", err.Error())
	}
	return nil
}
