// Command node is process 1 of a node: a machine made of namespaces. It gives the node folders of its own at the paths
// that Kubernetes knows, then keeps its services running, as systemd would. When it ends, the kernel ends all that runs
// on the node. Called as systemctl it starts and stops these services.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if filepath.Base(os.Args[0]) == "systemctl" {
		os.Exit(systemctl(os.Args[1:]))
	}
	if os.Getpid() != 1 || len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "node: ci/cluster starts this as the first process of its namespaces: node FOLDER ADDRESS...")
		os.Exit(2)
	}
	dir, addresses := os.Args[1], os.Args[2:]
	if err := begin(dir, addresses); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
	supervise(filepath.Join(dir, "services"))
}

func begin(dir string, addresses []string) error {
	if err := mounts(dir); err != nil { // first: nothing may be written before
		return err
	}
	return errors.Join(unix.Sethostname([]byte(filepath.Base(dir))), network(addresses[0]), balance(addresses))
}

// sysctls are settings of the whole machine that kubelet insists on. It finds them set, and leaves the machine's alone.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mounts makes the node's own file system: the machine's, but for what a node writes to. Nothing of it is seen outside.
func mounts(dir string) error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	overlay := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", filepath.Join(dir, "etc"), filepath.Join(dir, "etc.work"))
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "/proc", "proc", 0, ""},
		{"run", "/run", "tmpfs", 0, "mode=755"},
		{"etc", "/etc", "overlay", 0, overlay},
		{filepath.Join(dir, "var/lib"), "/var/lib", "", unix.MS_BIND, ""},
		{filepath.Join(dir, "var/log"), "/var/log", "", unix.MS_BIND, ""},
	} {
		if err := mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	for name, value := range sysctls {
		file := filepath.Join("/run/sysctl", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	// Kubelet wants mounts of volumes to reach the pods.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// network gives the node its address. Other nodes are reached by links that ci/cluster adds; all else leads nowhere.
func network(address string) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	for _, args := range []string{
		"link set lo up",
		"link add eth0 type veth peer name nowhere",
		"addr add " + address + "/32 dev eth0",
		"link set eth0 up",
		"link set nowhere up",
		"route add default dev eth0", // a packet to a Service's address needs a route before kube-proxy redirects it
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return nil
}
