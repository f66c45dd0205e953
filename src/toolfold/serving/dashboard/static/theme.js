"use strict";(()=>{var e=localStorage.getItem("toolfold-theme");(e==="light"||e==="dark")&&(document.documentElement.dataset.theme=e);})();
