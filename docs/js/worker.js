// Search from a disk: pages opened as files may start no workers, so this one runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, new URL(address, document.baseURI)), { once: true });
      document.body.appendChild(frame);
    }

    start(inside, address) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...names) => Promise.all(names.map((name) => this.load(inside, new URL(name, address))));
      this.load(inside, address).then(() => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    load(inside, address) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: address.href, onload: resolve, onerror: reject });
        inside.document.head.appendChild(script);
      });
    }

    postMessage(data) {
      if (!this.inside) this.waiting.push(data);
      else {
        const event = new this.inside.MessageEvent("message", { data });
        this.inside.dispatchEvent(event);
      }
    }

    set onmessage(listener) {
      this.addEventListener("message", listener);
    }

    terminate() {}
  };
